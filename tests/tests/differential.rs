//! The real program and a plain model of it judge the same random frames, and never differ.
//!
//! `LIMITER_DIFFERENTIAL_PACKETS` and `LIMITER_DIFFERENTIAL_SEED` make it longer and repeat it.

use std::{collections::HashMap, env, time::Instant};

use serde_json::Value;
use tests::{
    Cli, Daemon, DaemonOptions, Lab, Program,
    model::{
        By, Class, Limits, MAPPED, Model, Moment, Outcome, Policy, Rate, Target, Tier, Tracked,
        is_of_destination,
        traffic::{NETWORKS, Random, source, write},
    },
    program::{coarse_ns, layout, now_ns, stay_on_cpu},
    reports::Limit,
};

/// log2 of the sketch's epoch: 69 s, as long as it can be, so that a test can say where in it a frame
/// is without being exact.
const WINDOW_SHIFT: u32 = 36;
/// A 256th of an epoch, ns.
const PART: u64 = 1 << (WINDOW_SHIFT - 8);
/// The sketch's time is put this far into a part: more than the coarse clock can be late, ns.
const LATE: u64 = 30_000_000;
/// And moved again after this time, ns.
const STAY: u64 = 60_000_000;
/// How much the clocks of program and test may differ, ns.
const CLOCKS: u64 = 200;
/// The longest frame on an interface with an MTU of 1500, with two tags.
const FRAME: u64 = 1522;
/// Frames between changes of the limits; in each fifth of them some class loses all of its limits.
const ROUND: u64 = 20_000;
/// Changes between them.
const CHANGES: u64 = 4;
/// Changes before the first frame.
const FIRST_CHANGES: u64 = 40;

const SECOND: u64 = 1_000_000_000;

/// A rate, and the bursts that it may have, as an operator writes them and as numbers.
type Choice = (Rate, [&'static str; 3], [u64; 3]);

/// What a source may send by itself.
const PACKETS: [Choice; 4] = [
    (packets("1/hour", 1, 3600 * SECOND), ["1", "7", "100"], [1, 7, 100]),
    (packets("20/minute", 20, 60 * SECOND), ["10", "50", "200"], [10, 50, 200]),
    (packets("7pps", 7, SECOND), ["16", "100", "300"], [16, 100, 300]),
    (packets("300pps", 300, SECOND), ["20", "200", "500"], [20, 200, 500]),
];
const BYTES: [Choice; 2] = [
    (bytes("100kbit", 12_500), ["8kbyte", "50kbyte", "300kbyte"], [8_000, 50_000, 300_000]),
    (bytes("30kbyte/s", 30_000), ["2kbyte", "40kbyte", "200kbyte"], [2_000, 40_000, 200_000]),
];
/// What many may send together.
const SHARED_PACKETS: [Choice; 3] = [
    (packets("20/minute", 20, 60 * SECOND), ["100", "1000", "3000"], [100, 1000, 3000]),
    (packets("500pps", 500, SECOND), ["50", "500", "5000"], [50, 500, 5000]),
    (packets("3000pps", 3000, SECOND), ["100", "3000", "9000"], [100, 3000, 9000]),
];
const SHARED_BYTES: [Choice; 1] = [(
    bytes("1mbyte/s", 1_000_000),
    ["60kbyte", "1mbyte", "4mbyte"],
    [60_000, 1_000_000, 4_000_000],
)];
/// Classes that may all be in use at once: nested up to as deep as they may be, and some that overlap
/// without containing each other.
const CLASSES: [Class; 25] = [
    Class::new("udp", Some(17), None, None),
    Class::new("udp:53", Some(17), Some((53, 53)), None),
    Class::new("udp:50-60", Some(17), Some((50, 60)), None),
    Class::new("*:53", None, Some((53, 53)), None),
    Class::new("udp:1000-2000", Some(17), Some((1000, 2000)), None),
    Class::new("*:1500-1600", None, Some((1500, 1600)), None),
    Class::new("tcp", Some(6), None, None),
    Class::new("tcp:443", Some(6), Some((443, 443)), None),
    Class::new("tcp:80-443", Some(6), Some((80, 443)), None),
    Class::new("tcp/syn,!ack", Some(6), None, Some((SYN | ACK, SYN))),
    Class::new("tcp:80/syn,!ack", Some(6), Some((80, 80)), Some((SYN | ACK, SYN))),
    Class::new("icmp", Some(1), None, None),
    Class::new("icmpv6", Some(58), None, None),
    Class::new("gre", Some(47), None, None),
    Class::new("udp:from-53", Some(17), None, None).from(53, 53),
    Class::new("*:from-40-60", None, None, None).from(40, 60),
    Class::new("icmp:8", Some(1), None, None).icmp(0x0800, 0x08ff),
    Class::new("icmp:3/4", Some(1), None, None).icmp(0x0304, 0x0304),
    Class::new("icmpv6:128", Some(58), None, None).icmp(0x8000, 0x80ff),
    Class::new("udp:fragments", Some(17), None, None).later(),
    Class::new("*:fragments", None, None, None).later(),
    Class::new("any@203.0.113.0/24", None, None, None).to(SERVICES, 120),
    Class::new("udp@203.0.113.7", Some(17), None, None).to(SERVICES | 7, 128),
    Class::new("icmp@203.0.113.0/24", Some(1), None, None).to(SERVICES, 120),
    Class::new("icmpv6@2001:db8:0:2::/64", Some(58), None, None).to(SERVICES_V6, 64),
];

/// Classes that destinations have limits of.
const OF_DESTINATIONS: [Class; 4] = [
    Class::ANY,
    Class::new("udp", Some(17), None, None),
    Class::new("tcp", Some(6), None, None),
    Class::new("icmp", Some(1), None, None),
];

/// Where some packets go.
const SERVICES: u128 = MAPPED | 0xcb00_7100;
const SERVICES_V6: u128 = 0x2001_0db8_0000_0002 << 64;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

const fn packets(text: &'static str, amount: u64, period: u64) -> Rate {
    Rate { text, bytes: false, amount, period }
}

const fn bytes(text: &'static str, amount: u64) -> Rate {
    Rate { text, bytes: true, amount, period: SECOND }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}: {error}"))
    })
}

/// The sketch's time, as the test sets it.
struct Clock {
    epoch: u64,
    part: u64,
    offset: u64,
    set_at: u64,
}

impl Clock {
    /// Goes on to another part of this epoch, or to a later epoch.
    fn move_on(&mut self, program: &mut Program, random: &mut Random) {
        let ahead = random.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 2, 5]);
        self.epoch += ahead;
        let start = if ahead > 0 { 0 } else { self.part };
        self.part = start + random.below(256 - start) / random.pick(&[1, 4, 32]);
        self.set(program);
    }

    fn set(&mut self, program: &mut Program) {
        self.set_at = now_ns();
        let wall = (self.epoch << WINDOW_SHIFT) + self.part * PART + LATE;
        self.offset = wall.wrapping_sub(self.set_at);
        program.set_clock_offset(self.offset);
    }

    /// What the model needs to know of a frame that was judged between two moments; `None` if the
    /// machine paused for so long that the part is not certain.
    fn moment(&self, coarse: u64, ns: (u64, u64)) -> Option<Moment> {
        let began = i128::from(self.epoch << WINDOW_SHIFT) - i128::from(self.offset.cast_signed());
        let certain = ns.1 - self.set_at < PART - LATE;
        let ns = (ns.0 - CLOCKS, ns.1 + CLOCKS);
        certain.then_some(Moment { ns, coarse, epoch: self.epoch, part: self.part, began })
    }
}

/// Picks whose frame is next: a few send a lot, some send now and then, many send little and never
/// again.
struct Senders {
    next_light: u64,
    light: Vec<(u128, u64)>,
    repeat: (u128, u64),
}

/// Light sources start here, so that all networks are used up to 2^24.
const FIRST_LIGHT: u64 = 1 << 16;

impl Senders {
    fn new() -> Self {
        Self { next_light: FIRST_LIGHT, light: vec![(0, 0); 64], repeat: (0, 0) }
    }

    fn next(&mut self, random: &mut Random) -> u128 {
        if self.repeat.1 == 0 {
            self.repeat = (self.pick(random), random.pick(&[1, 1, 1, 2, 5, 30]));
        }
        self.repeat.1 -= 1;
        self.repeat.0
    }

    fn pick(&mut self, random: &mut Random) -> u128 {
        let network = random.pick(&NETWORKS);
        match random.below(10) {
            0..4 => source(network, random.below(24), random.chance(40)),
            4..6 => source(network, 1000 + random.below(500), random.chance(40)),
            _ => {
                let at = random.below(self.light.len() as u64) as usize;
                if self.light[at].1 == 0 {
                    // Times an odd number: all over the network.
                    let index = self.next_light.wrapping_mul(0x9e_3779);
                    self.next_light += 1;
                    self.light[at] =
                        (source(network, index, random.chance(40)), 1 + random.below(24));
                }
                self.light[at].1 -= 1;
                self.light[at].0
            }
        }
    }
}

/// Whom the limit of all sources together is for.
const TOTAL: Target = Target { by: By::All, ..Target::DEFAULT };

/// What the next limit of destinations is for.
fn target_of_destinations(random: &mut Random) -> Target {
    let class = Some(random.pick(&OF_DESTINATIONS));
    let (network, length) = random.pick(&[
        (0, 0),
        (SERVICES, 120),
        (SERVICES | 7, 128),
        (SERVICES_V6, 64),
        (SERVICES_V6 | 1, 128),
    ]);
    Target { class, by: By::Destination, network, length }
}

/// Whom and what the next limit is for.
fn target(limits: &Limits, random: &mut Random) -> Target {
    let network = random.pick(&NETWORKS);
    let v4 = |bits: u32, length: u32| (MAPPED | u128::from(bits), 96 + length);
    let v6 = |length: u32| ((0xfd00 | u128::from(network)) << 112, length);
    let first = u32::from(network) << 24;
    let single = source(network, random.below(24), false) as u32;
    let single_v6 = source(network, random.below(24), true);
    let class = random.chance(65).then(|| random.pick(&CLASSES));
    let by = if random.chance(40) { By::All } else { By::Source };
    // The total of all sources, which every packet meets, now and then and not for long.
    if random.chance(if limits.has(&TOTAL) { 40 } else { 8 }) {
        return TOTAL;
    }
    if random.chance(10) {
        return target_of_destinations(random);
    }
    let (network, length) = match random.below(8) {
        0 => (0, 0),
        1..3 => v4(first, 8),
        3 => v4(first | 0x80_0000, 9),
        // One source has nobody to share with.
        4 if by == By::All => v4(first, 16),
        4 => v4(single, 32),
        5 if by == By::Source => (single_v6, 64),
        5 | 6 => v6(16),
        _ => v6(26),
    };
    Target { class, by, network, length }
}

/// A prefix as an operator writes it.
fn prefix((network, length): (u128, u32)) -> String {
    if network >> 32 == MAPPED >> 32 {
        return format!("{}/{}", std::net::Ipv4Addr::from_bits(network as u32), length - 96);
    }
    format!("{}/{length}", std::net::Ipv6Addr::from_bits(network))
}

/// A target as an operator writes it.
fn arguments(target: &Target) -> Vec<String> {
    let Target { class, by, network, length } = *target;
    let whom = if length == 0 { "default".to_owned() } else { prefix((network, length)) };
    let mut arguments = vec!["--for".to_owned(), whom];
    if let Some(class) = class {
        arguments
            .extend(class.protocol.into_iter().flat_map(|p| ["--proto".into(), p.to_string()]));
        for (option, ports) in [("--dport", class.ports), ("--sport", class.from)] {
            let ports = ports.map(|(first, last)| format!("{first}-{last}"));
            arguments.extend(ports.into_iter().flat_map(|ports| [option.into(), ports]));
        }
        arguments.extend(class.icmp.into_iter().flat_map(|(first, last)| {
            let [kind, code] = first.to_be_bytes();
            let code = if first == last { format!("/{code}") } else { String::new() };
            ["--icmp".into(), format!("{kind}{code}")]
        }));
        arguments.extend(class.later.then(|| "--fragments".into()));
        arguments.extend(class.flags.map(|_| "--syn".into()));
        arguments.extend(class.to.into_iter().flat_map(|to| ["--dst".into(), prefix(to)]));
    }
    arguments.extend(match by {
        By::Source => vec![],
        By::All => vec!["--aggregate".into()],
        By::Destination => vec!["--by".into(), "destination".into()],
    });
    arguments
}

/// Runs `limit COMMAND` for a target.
fn limit(cli: &Cli, command: &str, target: &Target, more: &[&str]) -> Value {
    let target = arguments(target);
    let arguments = ["limit", command].into_iter().chain(more.iter().copied());
    cli.ok(&arguments.chain(target.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// Removes a limit in the daemon and in the model.
fn remove(cli: &Cli, model: &mut Model, target: &Target) {
    limit(cli, "unset", target, &[]);
    model.unset(target);
}

/// Removes all limits of a class: the buckets for it go, too.
fn remove_class(cli: &Cli, model: &mut Model, random: &mut Random) {
    let some = random.pick(&[&CLASSES[..], &OF_DESTINATIONS]);
    let class = random.pick(some);
    for target in model.limits().of_class(&class) {
        remove(cli, model, &target);
    }
}

/// Changes a limit, or removes one, in the daemon and in the model.
///
/// Some limits only count: shared ones if `counting`, else those of sources by themselves, and none of destinations. Of
/// a packet that one limit counts as over, nobody can tell what the next one says that only counts.
fn change_limit(cli: &Cli, model: &mut Model, random: &mut Random, counting: bool) {
    let key = target(model.limits(), random);
    let total = key == TOTAL;
    if model.limits().has(&key) && random.chance(if total { 100 } else { 25 }) {
        return remove(cli, model, &key);
    }
    let choices: [&[Choice]; 2] = match key.by {
        By::Source => [&PACKETS, &BYTES],
        By::All | By::Destination => [&SHARED_PACKETS, &SHARED_BYTES],
    };
    let kinds: &[usize] = random.pick(&[&[0][..], &[0], &[1], &[0, 1]]);
    let mut tiers = Vec::new();
    let (mut rates, mut bursts) = (Vec::new(), Vec::new());
    for kind in kinds {
        let (rate, texts, amounts) = random.pick(choices[*kind]);
        let choice = random.below(3) as usize;
        tiers.push(Tier { rate, burst: amounts[choice] });
        rates.push(rate.text);
        bursts.extend(["--burst", texts[choice]]);
    }
    let mut policy = Policy::new(tiers[0], tiers.get(1).copied(), model.window, FRAME);
    // Always one at least, or a run may end with hardly any that counted.
    let counts = random.chance(35) || !model.limits().any_counts();
    let may_count = if counting { By::All } else { By::Source };
    policy.enforce = total || key.by != may_count || !counts;
    let observe: &[&str] = if policy.enforce { &[] } else { &["--no-enforce"] };
    let before = now_ns();
    let answer = limit(cli, "set", &key, &[&rates[..], &bursts, observe].concat());
    let told: Limit = serde_json::from_value(answer["limit"].clone()).expect("a limit");
    assert_eq!(told.burst_amount, tiers[0].burst, "{told:?}");
    // What is shared has no gate: every packet is charged.
    assert!(key.by == By::All || told.gate == policy.gate, "{told:?}, not {policy:?}");
    let kind = key.class.map_or("", |class| class.text);
    assert!(told.target.contains(kind), "{told:?}");
    model.set(key, policy, (before, now_ns()));
}

/// Every counter, as the daemon tells it, against the model's.
fn compare_counters(stats: &Value, model: &Model) {
    for counter in stats["counters"].as_array().expect("counters") {
        let name = |key: &str| counter[key].as_str().unwrap_or_default();
        let found = (counter["packets"].as_u64(), counter["bytes"].as_u64());
        let mut counts = model.counts.iter();
        let expected = counts.find(|((v, r), _)| (*v, *r) == (name("verdict"), name("reason")));
        let expected = expected.map_or((0, 0), |(_, tally)| *tally);
        assert_eq!(found, (Some(expected.0), Some(expected.1)), "{counter}");
    }
    let promotions = model.tracked.len() as u64 + model.retired;
    for (name, expected) in [
        ("promotions", promotions),
        ("malformed", model.malformed),
        ("sketch_adds", model.sketch.adds),
        ("set_full", 0),
        ("evictions", 0),
        ("busy_evictions", 0),
        ("contended", 0),
    ] {
        assert_eq!(stats["internal"][name].as_u64(), Some(expected), "{name}: {stats:#}");
    }
}

/// What frames must meet, and one in how many at the least.
const REASONS: [(&str, u64); 9] = [
    ("below_gate", 1000),
    ("conforming", 20),
    ("over_limit", 40),
    ("would_drop", 20_000),
    ("over_shared_limit", 100),
    ("over_total_limit", 500),
    ("over_destination_limit", 100),
    ("non_ip", 1000),
    ("malformed", 1000),
];

/// The most sources that `top` lists.
const LISTED: usize = 10_000;

/// The sources, or the destinations, that have a bucket, as the daemon tells them, against the model's.
fn compare_buckets(cli: &Cli, model: &Model, of_destinations: bool) {
    let counted = |number: u8| is_of_destination(number) == of_destinations;
    let tracked = || model.tracked.iter().filter(|((_, number), _)| counted(*number));
    let count = tracked().count();
    let by: &[&str] = if of_destinations { &["--by", "destination"] } else { &[] };
    let listed = count.clamp(1, LISTED).to_string();
    let top = cli.ok(&[&["top", "--once", "-n", &listed], by].concat());
    assert_eq!(top["tracked"].as_u64(), Some(count as u64));
    let sources = top["sources"].as_array().expect("sources");
    assert_eq!(sources.len(), count.min(LISTED));
    // A source has a bucket for each class, which the list does not tell apart.
    let mut expected: HashMap<u128, Vec<Tracked>> = HashMap::new();
    for ((address, _), tracked) in tracked() {
        expected.entry(*address).or_default().push(*tracked);
    }
    for found in sources {
        let text = found["source"].as_str().expect("a prefix");
        let address = text.split('/').next().unwrap_or_default();
        let address = match address.parse().expect("an address") {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            std::net::IpAddr::V6(v6) => v6,
        };
        let number = |name: &str| found[name].as_u64().unwrap_or_else(|| panic!("{name}: {found}"));
        let (passed, dropped) = (number("passed"), number("dropped"));
        let expected = expected.entry(address.to_bits()).or_default();
        let same = |tracked: &Tracked| {
            tracked.passed + tracked.dropped == passed + dropped
                && tracked.passed.abs_diff(passed) <= tracked.unsure
                && tracked.bytes == number("bytes")
        };
        let Some(place) = expected.iter().position(same) else {
            panic!("{found}, not one of {expected:?}");
        };
        expected.swap_remove(place);
    }
}

#[test]
fn the_program_and_a_plain_model_never_differ() {
    // A machine that stands still for 0.2 s leaves the test without the sketch's time.
    assert!(
        (0..3).any(|_| compare().is_some()),
        "the machine stood still for 0.2 s in each of three runs"
    );
}

/// Runs the comparison; `None` if the machine paused for too long.
fn compare() -> Option<()> {
    let total = number("LIMITER_DIFFERENTIAL_PACKETS", 1_000_000);
    let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64);
    let seed = number("LIMITER_DIFFERENTIAL_SEED", time);
    println!("LIMITER_DIFFERENTIAL_SEED={seed}");
    let mut random = Random(seed);
    let lab = Lab::new(1);
    // So many cells that no source shares all of its own with others, so many buckets that they fill no set: with
    // half as many, one run in hundreds has nine sources for the eight buckets of a set. With two rows, as usual,
    // one run in twenty meets a source that shares its cells, and that the program rightly takes for a heavier one.
    let delta = random.pick(&["0.0184", "0.0025", "0.00034"]);
    let room = total.next_power_of_two().max(1 << 20).to_string();
    let drop_malformed = random.chance(50);
    let malformed = if drop_malformed { "drop" } else { "pass" };
    let daemon = Daemon::start_with(
        &lab,
        DaemonOptions::with(&[
            "--sketch-epsilon",
            "0.0000026",
            "--sketch-delta",
            delta,
            "--sketch-window",
            "60s",
            "--max-sources",
            &room,
            "--malformed",
            malformed,
        ]),
    );
    stay_on_cpu();
    let (cli, mut program) = (daemon.cli(), Program::new(&daemon));
    let layout = layout(&daemon);
    assert_eq!(layout.window_shift, WINDOW_SHIFT);
    let shape = (u64::from(layout.sketch.width()), u64::from(layout.sketch.depth));
    let mut model = Model::new(1 << WINDOW_SHIFT, shape, u64::from(layout.cpus));
    model.drop_malformed = drop_malformed;
    let counting = random.chance(50);
    let mut clock = Clock { epoch: 1000, part: 0, offset: 0, set_at: 0 };
    let mut senders = Senders::new();
    let mut frame = Vec::new();
    let (mut uncertain, mut waits, start) = (0, 0, Instant::now());
    for index in 0..total {
        if index % ROUND == 0 {
            program.resume_daemon();
            compare_counters(&cli.ok(&["stats"]), &model);
            if index % (ROUND * 5) == 0 {
                remove_class(&cli, &mut model, &mut random);
            }
            for _ in 0..if index == 0 { FIRST_CHANGES } else { CHANGES } {
                change_limit(&cli, &mut model, &mut random, counting);
            }
            program.pause_daemon();
            clock.move_on(&mut program, &mut random);
        } else if now_ns() - clock.set_at > STAY || random.below(3000) == 0 {
            clock.move_on(&mut program, &mut random);
        }
        let from = senders.next(&mut random);
        write(&mut frame, from, &mut random);
        let (coarse, before) = (coarse_ns(), now_ns());
        let verdict = program.judge(&frame);
        let Some(moment) = clock.moment(coarse, (before, now_ns())) else {
            program.resume_daemon();
            return None;
        };
        match model.judge(&frame, moment, verdict) {
            Outcome::Agrees => {}
            Outcome::Uncertain => uncertain += 1,
            Outcome::Waits => waits += 1,
            Outcome::Differs => {
                panic!("frame {index} of seed {seed}: {verdict:?} at {moment:?}: {frame:02x?}")
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    program.resume_daemon();
    compare_counters(&cli.ok(&["stats"]), &model);
    for of_destinations in [false, true] {
        compare_buckets(&cli, &model, of_destinations);
    }
    println!(
        "{total} frames in {seconds:.1} s, {} buckets, {} went with their class, {} limits and {} \
         classes at the end, 0 differences, {uncertain} too close to tell ({:.3} %), {waits} dropped up to a clock tick \
         after the next token of a source over its limit\n{:?}\n{:?}",
        model.tracked.len(),
        model.retired,
        model.limits().count(),
        model.limits().classes(),
        100.0 * uncertain as f64 / total as f64,
        model.counts,
        model.seen,
    );
    for (reason, share) in REASONS {
        let seen: u64 =
            model.counts.iter().filter(|((_, r), _)| *r == reason).map(|(_, n)| n.0).sum();
        assert!(seen * share > total, "too few frames met {reason} to show anything: {seen}");
    }
    let seen = model.seen;
    for (what, met) in [
        ("a limit of a class", seen.class),
        ("two tiers", seen.two),
        ("a shared limit", seen.shared),
        ("two shared limits", seen.series),
        ("a limit of a destination", seen.destination),
    ] {
        assert!(met * 200 > total, "too few frames met {what} to show anything: {met}");
    }
    assert!(total < 1_000_000 || model.retired > 0, "no class lost its buckets");
    // A total, which all packets meet, has all of them wait.
    assert!(waits * 3 < total, "{waits} of {total} frames waited for the coarse clock");
    assert!(uncertain * 5 < total, "{uncertain} of {total} frames are too close to tell");
    Some(())
}
