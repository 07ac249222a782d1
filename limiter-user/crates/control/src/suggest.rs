//! Watches what sources send, for as long as somebody asks for it.
//!
//! Once a second all buckets are looked at, in parts, so that nobody waits for the core longer than a few
//! milliseconds. Nothing is kept when the answer is there.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::gate::MAX_GATE;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::core::Core;
use super::handle::CoreHandle;
use super::plane::Plane;
use api::error::{Failure, exit};
use api::{AlgorithmReport, LightReport, ProposalReport, Question, SuggestReport, percent};
use model::source::Member;
use model::target::short_prefix;
use model::units::format_burst;
use model::{Selector, Target, Unit};
use telemetry::compare::{Compared, compare};
use telemetry::suggest::{Light, MIN_SOURCES, Proposal, TooSmall, Traffic, propose, too_small};
use telemetry::{MAX_SERIES, Observation, Rates, Sample, SourceRate, Watch};

/// Buckets that are looked at before others may use the core.
const PART: usize = 1 << 15;

/// Sources that are watched at the most, which takes 56 MiB. Of more, each second one, or third, …
const MAX: u64 = 1 << 20;

/// Between two looks.
const APART: Duration = Duration::from_secs(1);

/// What is known of the whole at one moment.
struct Whole {
    sample: Sample,
    buckets: usize,
    below: f64,
    notes: Vec<String>,
    program: String,
}

fn whole(core: &Core, whom: Selector) -> Result<Whole, Failure> {
    let target = Target::new(whom);
    let gate = core.rules.limit_for(&target).map_or(MAX_GATE, |limit| core.plane().gate_of(&limit));
    let mut notes = Vec::new();
    let limits = core.rules.in_force();
    if limits.classes().next().is_some() {
        notes.push(
            "packets that a limit of a class applies to are left out: this is about all others"
                .into(),
        );
    }
    // The default limit comes first.
    let own = |target: Target| target.prefix().is_some() && target.class.is_any();
    if whom == Selector::Default && limits.iter().take(1024).any(|limit| own(limit.target)) {
        notes.push("sources that a limit for a prefix covers are in this, and keep it".into());
    }
    let instance = core.instance.as_ref().map(|name| format!(" --instance {name}"));
    Ok(Whole {
        sample: core.sample()?,
        buckets: core.plane().buckets(),
        below: f64::from(gate) * 1e3 / core.plane().sketch().window_ms,
        notes,
        program: format!("limiter{}", instance.unwrap_or_default()),
    })
}

/// Whose bucket was seen, if it is the same source's still.
fn owner(plane: &dyn Plane, seen: &Observation) -> Option<IpNet> {
    let mut owner = None;
    plane.members(&mut std::iter::once(seen.bucket as usize), &mut |_, member| {
        owner = (member.counts.since_ns == seen.since_ns).then_some(member.source);
    });
    owner
}

/// The sources in `within` that have one bucket of `step` in `part`, and when that was, ns since boot.
fn glance(
    plane: &dyn Plane,
    part: Range<usize>,
    step: usize,
    within: Option<IpNet>,
) -> (u64, Vec<Observation>) {
    let mut seen = Vec::new();
    let first = part.start.next_multiple_of(step);
    let now = plane.monotonic_ns();
    plane.members(&mut (first..part.end).step_by(step), &mut |bucket, member| {
        let Member { source, class, counts, .. } = member;
        let wanted = class.is_any() && within.is_none_or(|net| net.contains(&source));
        let (Ok(bucket), true) = (u32::try_from(bucket), wanted) else { return };
        let (packets, bytes) = (counts.packets(), counts.bytes);
        seen.push(Observation { bucket, since_ns: counts.since_ns, packets, bytes });
    });
    (now, seen)
}

/// Watches, and says which limits that suggests. Fails with [`exit::NEGATIVE`] if too few sources send.
///
/// # Errors
/// If the data plane cannot be read, or too little was seen.
pub async fn suggest(shared: &CoreHandle, question: Question) -> Result<SuggestReport, Failure> {
    let Question { whom, over, .. } = question;
    let within = Target::new(whom).prefix();
    let before = shared.with(move |core| whole(core, whom)).await?;
    let step = before.sample.tracked().div_ceil(MAX).max(1) as usize;
    let parts = before.buckets.div_ceil(PART);
    // A multiple of the step: of those that are watched.
    let series_of = step * (before.sample.tracked() as usize / step).div_ceil(MAX_SERIES).max(1);
    let mut watch = Watch::new(parts, u32::try_from(series_of).unwrap_or(u32::MAX));
    let intervals = over.div_duration_f64(APART).round().max(1.0) as u32;
    let start = Instant::now();
    let mut distinct = Vec::new();
    let mut times = [SystemTime::now(); 2];
    for interval in 0..=intervals {
        sleep_until(start + over * interval / intervals).await;
        times[usize::from(interval > 0)] = SystemTime::now();
        for part in 0..parts {
            let buckets = part * PART..(part * PART + PART).min(before.buckets);
            let glance = move |core: &mut Core| Ok(glance(core.plane(), buckets, step, within));
            let (now, seen) = shared.with(glance).await?;
            watch.look(part, now, &seen);
        }
        let counted = shared.with(|core| Ok(core.plane().distinct())).await?;
        distinct.extend(counted.map(|counted| counted.sources));
    }
    let after = shared.with(move |core| whole(core, whom)).await?;
    let done = Watched {
        watch,
        looks: intervals as usize + 1,
        each: step,
        times,
        distinct,
        before,
        after,
    };
    // A million sources take a moment, in which the daemon has others to answer.
    let answer = spawn_blocking(move || done.answer(question)).await;
    let failed = |_| Failure::new(exit::NEGATIVE, "the watch has failed");
    let Answered { mut report, few, dominant, heaviest } = answer.map_err(failed)??;
    if let Some((seen, rate)) = heaviest.filter(|_| few.is_some() || dominant.is_some()) {
        let source = shared.with(move |core| Ok(owner(core.plane(), &seen))).await?;
        let notes = heaviest_notes(question.share, few.as_ref(), dominant, source, rate);
        report.notes.splice(0..0, notes);
    }
    Ok(report)
}

/// What is answered, and what is to be said of the heaviest source.
struct Answered {
    report: SuggestReport,
    heaviest: Option<(Observation, SourceRate)>,
    /// If the share is too small to touch anybody.
    few: Option<TooSmall>,
    /// The part of all packets that the heaviest source sends, if it does not count as usual.
    dominant: Option<f64>,
}

/// What to say where the share is less than one source, or one source sends most packets.
fn heaviest_notes(
    share: f64,
    few: Option<&TooSmall>,
    dominant: Option<f64>,
    heaviest: Option<IpNet>,
    rate: SourceRate,
) -> Vec<String> {
    let name = heaviest.map(|source| short_prefix(&source));
    let mut notes = Vec::new();
    if let Some(part) = dominant {
        let one = name
            .as_ref()
            .map_or_else(|| "one source".into(), |name| format!("one source, {name},"));
        notes.push(format!(
            "{one} sends {} of all packets, {:.0} packets/s: it is left out of what is usual",
            percent(part),
            rate.packets
        ));
    }
    let Some(found) = few else { return notes };
    let less = format!("{} of {:.0} sources is less than one", percent(share), found.sources);
    notes.push(match (dominant, name) {
        (Some(_), _) => format!("{less}, so these limits touch no other source"),
        (None, name) => format!(
            "{less}, so these limits touch nobody: the heaviest{} sends {:.0} packets/s",
            name.map(|name| format!(", {name},")).unwrap_or_default(),
            rate.packets
        ),
    });
    notes.extend(found.enough.map(|(share, proposal)| {
        let touched = proposal.touches.sources;
        let sources = if touched == 1 { "source" } else { "sources" };
        let (share, rate) = (100.0 * share, proposal.rate);
        format!("with --share {share:.2}% the limit is {rate}, which touches {touched} {sources}")
    }));
    notes
}

/// All that was seen.
struct Watched {
    watch: Watch,
    looks: usize,
    /// How many sources each that was watched stands for.
    each: usize,
    /// When the first and the last look began.
    times: [SystemTime; 2],
    /// Numbers of distinct sources, where they are counted.
    distinct: Vec<f64>,
    before: Whole,
    after: Whole,
}

impl Watched {
    fn answer(self, question: Question) -> Result<Answered, Failure> {
        let Question { whom, share, over } = question;
        let target = Target::new(whom);
        let Self { watch, looks, each, times, distinct, before, after } = self;
        let mut rates = watch.finish(looks, u32::try_from(each).unwrap_or(u32::MAX));
        let of_prefix = target.prefix().is_some();
        let light = light(&rates, &distinct, of_prefix, before.below);
        let traffic = if of_prefix {
            traffic_of(&rates)
        } else {
            traffic_between(&before.sample, &after.sample)
        };
        let mut notes = after.notes;
        if each > 1 {
            notes.push(format!("of so many sources one in {each} was watched"));
        }
        if light.sources.is_none() {
            notes.push(format!(
                "sources that send fewer than {:.0} packets per second are not counted here",
                light.below
            ));
        }
        let sources = rates.sources.len() as u64 * u64::from(rates.each);
        // Of all that was seen, as it was; what is proposed is made of what is usual.
        let percentiles = rates.percentiles().zip(rates.peak_packets.percentiles());
        let dominant = rates.set_dominant_aside(traffic.packets);
        let proposals = [Unit::Packets, Unit::Bytes]
            .map(|unit| propose(&mut rates, light, traffic, share, unit));
        let ([Some(packets), Some(bytes)], Some(([by_packets, by_bytes], peaks))) =
            (proposals, percentiles)
        else {
            return Err(too_few(sources, dominant, &light, over));
        };
        if rates.series_each > rates.each {
            notes.push(format!(
                "algorithms are compared on one in {} of these sources",
                rates.series_each / rates.each.max(1)
            ));
        }
        let algorithms = compare(&rates, light, share, &packets).into_iter();
        let algorithms =
            algorithms.map(|it| algorithm_report(it, &target, &after.program)).collect();
        let few = too_small(&mut rates, light, traffic, share);
        let [packets, bytes] =
            [packets, bytes].map(|found| proposal_report(&found, &target, &after.program));
        let report = SuggestReport {
            target: whom.short(),
            from: humantime::format_rfc3339_millis(times[0]).to_string(),
            to: humantime::format_rfc3339_millis(times[1]).to_string(),
            seconds: times[1].duration_since(times[0]).unwrap_or(over).as_secs_f64(),
            share,
            sources,
            light: LightReport {
                sources: light.sources.map(|sources| sources as u64),
                below: light.below,
            },
            packets_per_second: by_packets,
            bytes_per_second: by_bytes,
            peak_packets_per_second: peaks,
            total_packets_per_second: traffic.packets,
            total_bytes_per_second: traffic.bytes,
            packets,
            bytes,
            algorithms,
            notes,
        };
        Ok(Answered { report, few, dominant, heaviest: rates.heaviest })
    }
}

/// What is known of sources without a bucket, from the numbers of `distinct` sources in a window. These are
/// of all sources, so they say nothing of those in a prefix.
fn light(rates: &Rates, distinct: &[f64], of_prefix: bool, below: f64) -> Light {
    let mean = distinct.iter().sum::<f64>() / distinct.len().max(1) as f64;
    let known = !distinct.is_empty() && !of_prefix;
    Light { sources: known.then(|| (mean - rates.active).max(0.0).round()), below }
}

fn traffic_between(before: &Sample, after: &Sample) -> Traffic {
    let seconds = after.monotonic_ns.saturating_sub(before.monotonic_ns).max(1) as f64 / 1e9;
    let sums = [before, after].map(|sample| {
        let [passed, dropped] = sample.verdicts();
        (passed.packets + dropped.packets, passed.bytes + dropped.bytes)
    });
    Traffic {
        packets: sums[1].0.saturating_sub(sums[0].0) as f64 / seconds,
        bytes: sums[1].1.saturating_sub(sums[0].1) as f64 / seconds,
    }
}

fn traffic_of(rates: &Rates) -> Traffic {
    let each = f64::from(rates.each);
    let sum = |of: fn(&_) -> f64| each * rates.sources.iter().map(of).sum::<f64>();
    Traffic { packets: sum(|source| source.packets), bytes: sum(|source| source.bytes) }
}

/// What a command needs to be about the target.
fn for_target(target: &Target) -> String {
    match target.prefix() {
        Some(_) => format!(" --for {}", target.whom.short()),
        None => String::new(),
    }
}

fn algorithm_report(compared: Compared, target: &Target, program: &str) -> AlgorithmReport {
    let by = match compared.burst {
        Some(burst) => format!(" --burst {burst}"),
        None => format!(" --algorithm {}", compared.algorithm.name()),
    };
    let command = format!("{program} limit set {}{by}{}", compared.rate, for_target(target));
    AlgorithmReport { compared, command }
}

fn proposal_report(proposal: &Proposal, target: &Target, program: &str) -> ProposalReport {
    let Proposal { rate, burst, touches } = *proposal;
    let of = for_target(target);
    let burst_text = match rate.unit() {
        Unit::Packets => burst.to_string(),
        // Proposed in whole kilobytes.
        Unit::Bytes => format!("{}kbyte", burst / 1000),
    };
    let what = format!("{rate} --burst {burst_text}{of}");
    ProposalReport {
        rate,
        burst: format_burst(burst, rate.unit()),
        rate_per_second: rate.per_second(),
        burst_amount: burst,
        sources: touches.sources,
        share_of_sources: touches.share_of_sources,
        share_of_packets: touches.share_of_packets,
        share_of_bytes: touches.share_of_bytes,
        command: format!("{program} limit set {what}"),
        try_command: format!("{program} limit shadow set {what}"),
    }
}

fn too_few(sources: u64, dominant: Option<f64>, light: &Light, over: Duration) -> Failure {
    let over = humantime::format_duration(over);
    let sent = if sources == 1 { "1 source".into() } else { format!("{sources} sources") };
    let sent = match dominant {
        Some(part) => format!("{sent}, one of them {} of all packets,", percent(part)),
        None => sent,
    };
    let few = match light.sources {
        Some(sources) if sources > 0.0 => {
            format!(", and some {sources:.0} at a time too little (below {:.0}pps)", light.below)
        }
        _ => String::new(),
    };
    let message = format!(
        "only {sent} sent enough to have a bucket within {over}{few}: {MIN_SOURCES} are needed to tell \
         what is usual"
    );
    Failure::new(exit::NEGATIVE, message).hint(
        "let it run longer, such as --over 1m, or when there is more traffic; `limiter top --once --sort \
         pps` lists who sends",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fake::Fake;

    /// The counts of sources that send 100, 101, … pps, a second later in the fake's time.
    fn send(fake: &Fake, sources: u64) {
        let mut state = fake.state();
        state.monotonic_ns += 1_000_000_000;
        let seconds = state.monotonic_ns / 1_000_000_000;
        for i in 0..sources {
            let name = format!("192.0.{}.{}", i / 200, i % 200);
            state.sources.insert(name, ((100 + i) * seconds, 0));
        }
    }

    /// Lets the fake's sources send, in its own time, until the answer is there.
    fn ask(sources: u64, question: Question) -> Result<SuggestReport, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        send(&fake, sources);
        let shared = CoreHandle::new(fake.core(&directory));
        let done = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&done);
        let sender = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                send(&fake, sources);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(suggest(&shared, question));
        done.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        answer
    }

    const QUESTION: Question =
        Question { whom: Selector::Default, share: 0.1, over: Duration::from_secs(1) };

    #[test]
    fn known_rates_are_found() {
        let report = ask(100, QUESTION).unwrap();
        assert_eq!(report.sources, 100);
        let found = report.packets_per_second;
        for (found, wanted) in [(found.p50, 149.5), (found.p90, 189.5), (found.max, 199.0)] {
            assert!((found - wanted).abs() < 1.0, "{found}, not {wanted}");
        }
        assert_eq!(report.packets.rate.to_string(), "230pps");
        assert_eq!(report.packets.command, "limiter limit set 230pps --burst 276");
        assert_eq!(report.packets.sources, 0, "with some room nobody is over it");
        assert!(report.bytes.command.contains("15kbyte/s --burst 18kbyte"), "{report:?}");
        assert!(report.notes[0].contains("119 packets per second"), "{:?}", report.notes);
        serde_json::to_string(&report).unwrap();
    }

    #[test]
    fn a_prefix_has_its_own_answer() {
        let whom = Selector::Prefix("192.0.0.0/24".parse().unwrap());
        let report = ask(400, Question { whom, ..QUESTION }).unwrap();
        assert_eq!((report.sources, report.target.as_str()), (200, "192.0.0.0/24"));
        assert!(report.packets.try_command.ends_with("--for 192.0.0.0/24"), "{report:?}");
        let whom = Selector::Prefix("198.51.100.0/24".parse().unwrap());
        let failure = ask(400, Question { whom, ..QUESTION }).unwrap_err();
        assert!(failure.message.starts_with("only 0 sources sent"), "{failure}");
    }

    #[test]
    fn too_little_is_said_so() {
        let failure = ask(3, QUESTION).unwrap_err();
        assert_eq!(failure.code, exit::NEGATIVE);
        assert!(failure.message.starts_with("only 3 sources sent"), "{failure}");
        assert!(failure.hint.unwrap().contains("--over 1m"));
    }
}
