use std::time::Duration;

use limiter_common::gcra::{TICKS_PER_NS, Ticks};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;

/// 100 a minute.
fn settings() -> Settings {
    Settings::new(100, Duration::from_secs(60), None, None).unwrap()
}

/// The most of `times` in any window.
fn most(times: &[Ticks], window: Ticks) -> u64 {
    let within = |end: &Ticks| times.iter().filter(|it| *it <= end && **it + window > *end).count();
    times.iter().map(within).max().unwrap_or_default() as u64
}

/// What one algorithm makes of one source, each figure from the whole trace anew.
fn by_hand(settings: &Settings, candidates: &[Candidate], which: usize, times: &[Ticks]) -> Tally {
    let window = settings.window;
    let decide = |candidate: &Candidate| {
        let mut state = candidate.state();
        let take = |time: &Ticks| candidate.algorithm.take(&mut state, *time, 1);
        times.iter().map(take).collect::<Vec<bool>>()
    };
    let admits = decide(&candidates[which]);
    let mut log: Vec<Ticks> = Vec::new();
    let (mut admitted, mut tally) = (Vec::new(), Tally::default());
    for (i, (time, admits)) in times.iter().zip(&admits).enumerate() {
        let exact = (log.iter().filter(|it| **it + window > *time).count() as u64) < settings.limit;
        if exact {
            log.push(*time);
        }
        if *admits {
            admitted.push(*time);
        }
        let conforms = most(&times[..=i], window) <= settings.limit;
        tally.offered += 1;
        tally.admitted += u64::from(*admits);
        tally.otherwise += u64::from(*admits != exact);
        tally.conforming_denied += u64::from(conforms && !admits);
    }
    tally.most = most(&admitted, window);
    let (sent, has_denied) = (most(times, window), admits.contains(&false));
    tally.missed_sources = u64::from(sent > settings.limit && !has_denied);
    if tally.missed_sources > 0 {
        tally.missed_excess = sent as f64 / settings.limit as f64 - 1.0;
    }
    tally.wronged_sources = u64::from(sent <= settings.limit && has_denied);
    tally
}

proptest! {
    #[test]
    fn the_judge_counts_what_is_counted_by_hand(
        limit in 1_u64..6,
        burst in 1_u64..6,
        parts in 2_u64..6,
        gaps in vec(vec(prop_oneof![Just(0_u64), 0_u64..3000, 0_u64..20], 0..40), 1..4),
    ) {
        let window = 2520;
        let settings = Settings { limit, window, burst, parts };
        let candidates = settings.candidates().unwrap();
        let mut expected = vec![Tally::default(); candidates.len()];
        let mut judge = Judge::new(&settings, &candidates, false);
        for gaps in &gaps {
            let mut now = 2 * window;
            let times: Vec<_> = gaps.iter().map(|gap| { now += gap; now }).collect();
            for (which, tally) in expected.iter_mut().enumerate() {
                tally.add(&by_hand(&settings, &candidates, which, &times));
            }
            // In pieces: it must not matter where a trace is cut.
            let (one, other) = times.split_at(times.len() / 3);
            judge.feed(one);
            judge.feed(other);
            judge.end_source();
        }
        for (mut tally, expected) in judge.into_tallies().into_iter().zip(expected) {
            tally.nanoseconds = 0.0;
            prop_assert_eq!(tally, expected);
        }
    }
}

#[test]
fn patterns_are_what_they_say() {
    let settings = settings();
    let trace = |name: &str, seed, source| {
        let traffic = Traffic::named(name);
        assert_eq!(traffic.len(), 1, "{name}");
        let trace = traffic[0].trace(&settings, seed, source).into_owned();
        assert!(trace.is_sorted(), "{name}");
        assert!(trace.first().is_some_and(|first| *first >= settings.window), "{name}");
        trace
    };
    // A mean of 30 windows is within five deviations.
    for (name, expected) in [
        ("steady-0.5", 1500.0),
        ("steady-10", 30_000.0),
        ("poisson-0.9", 2700.0),
        ("poisson-10", 30_000.0),
        ("diurnal", 2400.0),
        ("on-off", 80.0 * 45.0),
    ] {
        let sent = trace(name, 1, 0).len() as f64;
        assert!((sent - expected).abs() < 5.0 * expected.sqrt() + 81.0, "{name}: {sent}");
    }
    assert_eq!(most(&trace("steady-1", 1, 0), settings.window), 100);
    let gaps = |name| trace(name, 1, 0).windows(2).map(|it| it[1] - it[0]).max().unwrap();
    assert!(gaps("steady-1") <= SECOND * 6 / 10 + 1);
    assert!(gaps("on-off") > 28 * SECOND && gaps("on-off") < 34 * SECOND);
    let edge = trace("edge", 1, 0);
    assert_eq!(most(&edge, 2 * SECOND), 200);
    let into = |time: &Ticks| time % settings.window;
    assert!(edge.iter().all(|it| into(it) < SECOND || into(it) >= 59 * SECOND));
    let bursts = trace("bursts", 1, 0);
    let sizes: Vec<_> = bursts.chunk_by(|a, b| a == b).map(<[Ticks]>::len).collect();
    assert!(sizes.iter().all(|size| (5..=120).contains(size)) && sizes.len() > 30, "{sizes:?}");
    let (first, tenth) = (trace("zipf", 1, 0).len() as f64, trace("zipf", 1, 9).len() as f64);
    assert!((first / tenth - 10.0).abs() < 1.0, "{first} and {tenth}");
    assert_eq!(trace("zipf", 1, 9), trace("zipf", 1, 9));
    assert_ne!(trace("zipf", 1, 9), trace("zipf", 1, 8));
    assert_ne!(trace("zipf", 1, 9), trace("zipf", 2, 9));
    assert_eq!((Traffic::named("steady").len(), Traffic::named("poisson").len()), (5, 5));
    assert!(Traffic::named("stead").is_empty() && Traffic::named("").is_empty());
}

#[test]
fn none_is_over_its_bound_and_overload_uses_up_the_limit() {
    let settings = settings();
    let candidates = settings.candidates().unwrap();
    assert!(candidates.iter().map(|it| &*it.name).eq(NAMES));
    let bounds: Vec<_> = candidates.iter().map(Candidate::bound).collect();
    assert_eq!(bounds, [200, 200, 200, 199, 100, 100]);
    for traffic in Traffic::all() {
        let outcome = judge(&settings, &candidates, &traffic, 1..3);
        for (candidate, tally) in candidates.iter().zip(&outcome.tallies) {
            let context = format!("{}, {}: {tally:?}", traffic.name, candidate.name);
            assert!(tally.most <= candidate.bound(), "{context}");
            match &traffic.name[..] {
                "steady-10" | "poisson-10" | "edge" | "zipf" => {
                    assert!(tally.most >= 95, "{context}");
                }
                "steady-0.5" | "poisson-0.5" => {
                    assert_eq!((tally.conforming_denied, tally.otherwise), (0, 0), "{context}");
                }
                _ => {}
            }
        }
        let [token, leaky, .., log] = &outcome.tallies[..] else { panic!("six algorithms") };
        assert_eq!((token.most, token.admitted), (leaky.most, leaky.admitted));
        assert_eq!((log.otherwise, log.conforming_denied), (0, 0));
    }
}

#[test]
fn an_adversary_comes_near_every_bound() {
    for (limit, burst, granularity) in
        [(100, None, None), (10, None, Some(20)), (40, Some(5), None), (1000, None, None)]
    {
        let granularity = granularity.map(Duration::from_secs);
        let settings = Settings::new(limit, Duration::from_secs(60), burst, granularity).unwrap();
        let candidates = settings.candidates().unwrap();
        for (i, candidate) in candidates.iter().enumerate() {
            let attack = adversary::search(&settings, candidate, 1);
            let context = format!("{}, {settings:?}: {:?}", candidate.name, attack.trains);
            assert!(attack.most as f64 >= 0.95 * candidate.bound() as f64, "{context}");
            // The judge, which knows nothing of the search, finds the same.
            let traffic = Traffic::recorded("attack", "", vec![attack.times]);
            let tally = judge(&settings, &candidates, &traffic, 0..1).tallies[i];
            assert_eq!(tally.most, attack.most, "{context}");
            assert!(tally.most <= candidate.bound(), "{context}");
        }
    }
}

/// A frame of IPv4 from 192.0.2.`source`.
fn frame(source: u8) -> Vec<u8> {
    let mut frame = vec![0; 34];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&[0, 20]);
    frame[26..30].copy_from_slice(&[192, 0, 2, source]);
    frame
}

/// Source and time of packets, ms; not in order.
const PACKETS: [(u8, u64); 5] = [(1, 7000), (2, 7001), (2, 9500), (2, 9000), (3, 8000)];

fn pcapng(resolution: Option<u8>, per_ms: f64, link: DataLink) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
    let interface = InterfaceDescriptionBlock { linktype: link, snaplen: 100, options };
    writer.write_pcapng_block(interface).unwrap();
    for (source, ms) in PACKETS {
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            // The library writes what it takes for nanoseconds as it is.
            timestamp: Duration::from_nanos((ms as f64 * per_ms) as u64),
            original_len: 34,
            data: frame(source).into(),
            options: Vec::new(),
        };
        writer.write_pcapng_block(packet).unwrap();
    }
    writer.into_inner()
}

#[test]
fn packets_of_a_file_come_at_their_times() {
    let ms = |ms: u64| SECOND / 1000 * ms;
    let expected = vec![vec![ms(1), ms(2000), ms(2500)], vec![ms(0)], vec![ms(1000)]];
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (source, ms) in PACKETS {
        let packet = PcapPacket::new(Duration::from_millis(ms), 34, &frame(source)).into_owned();
        writer.write_packet(&packet).unwrap();
    }
    let pcap = writer.into_writer();
    assert_eq!(read(&pcap[..]).unwrap(), expected);
    for (resolution, per_ms) in [(None, 1e3), (Some(9), 1e6), (Some(3), 1.0)] {
        let file = pcapng(resolution, per_ms, DataLink::ETHERNET);
        assert_eq!(read(&file[..]).unwrap(), expected, "{resolution:?}");
    }
    // 2^-10 s: rounded down to whole units, and to ns.
    let file = pcapng(Some(0x8a), 1.024, DataLink::ETHERNET);
    let apart = read(&file[..]).unwrap()[0][2].abs_diff(ms(2500));
    assert!(apart < SECOND / 1000, "{apart}");
}

#[test]
fn files_that_cannot_be_judged_are_refused() {
    let file = pcapng(None, 1e3, DataLink::ETHERNET);
    for length in 0..file.len() {
        // Whole packets before the cut are a whole file.
        match read(&file[..length]) {
            Ok(sources) => assert!(sources.iter().map(Vec::len).sum::<usize>() < 5),
            Err(CaptureError::Malformed(_) | CaptureError::Empty) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(matches!(
        read(&b"no packets at all, but longer than a header"[..]),
        Err(CaptureError::Malformed(PcapError::InvalidField(_)))
    ));
    let raw = pcapng(None, 1e3, DataLink::RAW);
    assert!(matches!(read(&raw[..]), Err(CaptureError::Link(DataLink::RAW))));
    let slow = pcapng(Some(0), 1e6, DataLink::ETHERNET);
    assert!(matches!(read(&slow[..]), Err(CaptureError::Span)));
}

#[test]
fn limits_that_cannot_be_tried_are_refused() {
    let minute = Duration::from_secs(60);
    let granularity =
        |seconds| Settings::new(100, minute, None, Some(Duration::from_secs_f64(seconds)));
    for seconds in [0.0, 7.0, 60.0, 61.0, 120.0, 0.5] {
        assert_eq!(granularity(seconds), Err(SettingsError::Granularity), "{seconds}");
    }
    assert_eq!(granularity(15.0).map(|it| it.parts), Ok(4));
    // A second has no 60 equal parts in ticks.
    assert_eq!(Settings::new(5, Duration::from_secs(1), None, None).map(|it| it.parts), Ok(50));
    for limit in [0, LIMITS.end() + 1] {
        assert_eq!(Settings::new(limit, minute, None, None), Err(SettingsError::Limit(limit)));
    }
    let year = Duration::from_secs(365 * 86_400);
    assert_eq!(Settings::new(1, year, None, None), Err(SettingsError::Window));
    assert!(Settings::new(1, minute, Some(0), None).is_err());
    assert!(Settings::new(1, minute, Some(u64::MAX), None).is_err());
    assert!(Settings::new(100_000, Duration::from_nanos(60), None, None).is_err());
}

#[test]
fn the_experiment_is_the_same_with_any_threads_and_scales() {
    let settings = settings();
    let candidates = settings.candidates().unwrap();
    let mut told = Vec::new();
    let mut run =
        || experiment::run(&settings, &candidates, (200_000, 500), 1, &mut |it| told.push(it));
    let (one, other) = (run(), run());
    for ((one, other), candidate) in one.iter().zip(&other).zip(&candidates) {
        let name = &candidate.name;
        assert!((one.offered as f64 - 200_000.0).abs() < 5.0 * 450.0, "{name}: {one:?}");
        assert_eq!((one.otherwise, one.most), (other.otherwise, other.most), "{name}");
        assert!(one.most <= candidate.bound(), "{name}: {one:?}");
    }
    let log = one.last().unwrap();
    assert_eq!((log.otherwise, log.missed_sources, log.wronged_sources), (0, 0, 0));
    assert!(log.mean_difference() == 0.0 && one[3].mean_difference() > 0.01, "{one:?}");
    assert!(told.is_sorted() || told.len() > 1);
}

#[test]
fn curves_show_what_an_edge_admits() {
    let settings = settings();
    let candidates = curves::candidates(&settings).unwrap();
    let traffic = &Traffic::named("edge")[0];
    let curves = curves::curves(&settings, &candidates, traffic, 1);
    let names: Vec<_> = curves.algorithms.iter().map(|it| &it.name[..]).collect();
    assert_eq!(
        names,
        [
            "token-, leaky-bucket",
            "fixed-window of 60 s",
            "sliding-window",
            "sub-windows of 15 s",
            "sub-windows of 1 s",
            "sliding-log"
        ]
    );
    let high = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    assert_eq!((curves.times[0], *curves.times.last().unwrap()), (0.0, 240.0));
    assert_eq!(high(&curves.offered), 200.0);
    let fixed = &curves.algorithms[1];
    assert_eq!((high(&fixed.counted), high(&fixed.admitted)), (100.0, 200.0));
    let log = curves.algorithms.last().unwrap();
    assert_eq!((high(&log.counted), high(&log.admitted)), (100.0, 100.0));
    assert_eq!(log.counted, log.admitted);
}
