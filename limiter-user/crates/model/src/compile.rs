//! From what the operator said to what the kernel computes with.

use crate::Invalid;
use limiter_common::abi::{CompiledTier, Policy, Terms, Tier};
use limiter_common::algorithm::Window;
use limiter_common::floor::Floor;
use limiter_common::gate::{MAX_GATE, MIN_FRAME, gate};
use limiter_common::gcra::{MAX_TOLERANCE, TICKS_PER_NS};
use limiter_common::share::{MAX_SHARED_COST, Multiplier};

use super::algorithm::Algorithm;
use super::lease::{self, LOCAL_PART};
use super::scope::{OnError, Partition, Scope};
use super::units::{Rate, Unit};
use crate::limit::{Amount, Limit, Tier as Spec};
use crate::target::Target;

/// The bound on [`Tier::per_byte`].
const MAX_PER_BYTE: u128 = 1 << 40;

/// Compiles a limit for a sketch with epochs of 2^`window_shift` ns and frames of up to `max_frame`
/// bytes.
///
/// # Errors
/// If burst / rate is beyond 13 days, or a byte takes longer than a minute.
pub fn compile(limit: &Limit, window_shift: u32, max_frame: u32) -> Result<Policy, Invalid> {
    let compiled = |spec| compile_tier(&limit.target, &spec, window_shift, max_frame);
    let mut policy = Policy::new(compiled(limit.tier())?);
    if let Some(also) = limit.also {
        policy = policy.and(compiled(also)?);
    }
    if limit.target.aggregate {
        // Every packet is charged, so there is nothing that a gate could let through.
        policy.gate = MAX_GATE;
    }
    if limit.ban.is_some_and(|ban| !ban.unverified) {
        policy = policy.seeking_evidence();
    }
    Ok(if limit.enforce { policy } else { policy.observing() })
}

/// Compiles a limit of the cluster, of which each source has the `floor` on this host, as [`compile`].
///
/// # Errors
/// As [`compile`], and for a limit under which a packet of `max_frame` bytes takes longer than four minutes.
pub fn compile_shared(
    limit: &Limit,
    floor: &Floor,
    window_shift: u32,
    max_frame: u32,
) -> Result<Policy, Invalid> {
    let policy = compile(limit, window_shift, max_frame)?;
    let tiers = || policy.tiers().into_iter().flatten();
    if tiers().any(|(tier, _)| tier.cost(max_frame) > MAX_SHARED_COST) {
        let hint = "under a limit of the cluster a packet may take four minutes at the most";
        return Err(refused(&limit.target, "it is too slow to be divided among hosts", hint));
    }
    let gates = tiers().map(|(_, terms)| floor_gate(terms, floor.share(), window_shift, max_frame));
    let gate = gates.min().unwrap_or(1);
    let mut policy = policy;
    if limit.target.aggregate {
        // Its bucket holds a share of the burst and no more, and each packet is charged to it.
        return Ok(policy.shared_by_hosts(floor.share(), [0; 2]));
    }
    for tier in [&mut policy.first, &mut policy.second] {
        // Each host's bucket holds a packet whatever its share, which is not to be divided any more.
        let packets = tier.cost(max_frame).saturating_mul(u64::from(floor.hosts()));
        // The other half are burst floors.
        let rest = tier.tolerance.saturating_sub(packets);
        tier.tolerance = rest - (rest / 2).min(MAX_SHARED_COST);
    }
    let filled = [policy.first, policy.second].map(|tier| floor.filled(tier.tolerance));
    let mut shared = policy.shared_by_hosts(floor.share(), filled);
    // A grant can only make the share larger, so what the floor lets pass uncounted is within any
    // share.
    shared.gate = gate.min(policy.gate);
    Ok(shared)
}

/// Compiles a strict limit, as [`compile`]: to packets it is a limit of the cluster.
///
/// # Errors
/// As [`compile`].
pub fn compile_leased(
    limit: &Limit,
    on_error: OnError,
    window_shift: u32,
    max_frame: u32,
) -> Result<Policy, Invalid> {
    let mut policy = compile(limit, window_shift, max_frame)?;
    let rest = policy.first.tolerance.saturating_sub(policy.first.cost(max_frame));
    policy.first.tolerance = rest / LOCAL_PART;
    let floor = Multiplier::from_units(lease::FLOOR.units());
    // Burst floors would be divided among hosts, which do not know of each other. Nor could any gate.
    let policy = Policy { home: 0, gate: 1, ..policy.shared_by_hosts(floor, [0; 2]) };
    let code = OnError::ALL.iter().position(|one| *one == on_error).unwrap_or_default();
    Ok(policy.leased_by_store(code as u32 + 1))
}

/// What is said of a limit for `target` that cannot be enforced.
pub fn refused(target: &Target, problem: &str, hint: &str) -> Invalid {
    Invalid::new(format!("limit for {target}: {problem}")).with_hint(hint)
}

/// The gate of a tier of which each source has a part.
fn floor_gate(terms: &Terms, floor: Multiplier, window_shift: u32, max_frame: u32) -> u32 {
    let size = if terms.unit == Terms::BYTES { max_frame.max(1) } else { 1 };
    let part = |amount: f64| (amount * floor.part() / f64::from(size)) as u64;
    let window_ns = (1u64 << window_shift) as f64;
    let per_window = terms.rate as f64 * window_ns / terms.period_ns.max(1) as f64;
    gate(part(terms.burst as f64), part(per_window))
}

/// CPUs that may add a packet each to what a window counts, beyond its limit.
const MAX_CPUS: u64 = 512;

/// The largest unit in which a window counts bytes, as a shift.
const MAX_UNIT_SHIFT: u8 = 12;

/// Compiles one rate that is counted in windows, as [`compile_tier`].
///
/// Bytes are counted in the smallest unit, a power of two, with which counts and time fit into a word; each frame is
/// rounded up to it.
fn compile_window(
    target: &Target,
    algorithm: Algorithm,
    rate: &Rate,
    max_frame: u32,
) -> Result<Tier, Invalid> {
    let length = rate.period_ns().saturating_mul(TICKS_PER_NS);
    let window = |shift: u8, cost: u64| {
        let (limit, headroom) = (rate.amount() >> shift, MAX_CPUS * cost);
        let new = if algorithm == Algorithm::FixedWindow { Window::fixed } else { Window::sliding };
        new(limit, headroom, length)
    };
    let tier = match rate.unit() {
        Unit::Packets => window(0, 1).ok().map(|window| Tier::of_packets(1, 0).in_window(window)),
        Unit::Bytes => (0..=MAX_UNIT_SHIFT).find_map(|shift| {
            let window = window(shift, u64::from(max_frame >> shift) + 1).ok()?;
            Some(Tier::of_bytes(1, shift, 0).in_window(window))
        }),
    };
    tier.ok_or_else(|| {
        let name = algorithm.name();
        let problem = format!("a {name} cannot count to {rate} in its word");
        refused(target, &problem, "take token-bucket, or a rate per second or minute")
    })
}

/// Compiles one rate, as [`compile`].
///
/// # Errors
/// As [`compile`], and for a rate that its window cannot count to.
pub fn compile_tier(
    target: &Target,
    spec: &Spec,
    window_shift: u32,
    max_frame: u32,
) -> Result<CompiledTier, Invalid> {
    let &Spec { rate, burst, algorithm } = spec;
    let refuse = |problem: String, hint: &str| refused(target, &problem, hint);
    let (amount, period_ns) = (rate.amount(), rate.period_ns());
    let period = u128::from(period_ns) * u128::from(TICKS_PER_NS);
    let slow = || {
        refuse(
            format!("{rate} is too slow"),
            "a packet may take 13 days at the most, a byte one minute",
        )
    };
    // Wide, as a rate of 10^12 bytes times a window of 2^36 ns is beyond 64 bits.
    let per_window = (u128::from(amount) << window_shift) / u128::from(period_ns);
    let per_window = u64::try_from(per_window).unwrap_or(u64::MAX);
    // What a unit costs is rounded up: never more than the limit.
    let (tier, tolerance, gate, unit) = match rate.unit() {
        Unit::Packets => {
            let fixed = period.div_ceil(u128::from(amount));
            let tolerance = fixed * u128::from(burst);
            let fixed = u64::try_from(fixed).map_err(|_| slow())?;
            let gate = gate(burst, per_window);
            (Tier::of_packets(fixed, 0), tolerance, gate, Terms::PACKETS)
        }
        Unit::Bytes => {
            let (per_byte, shift) = (0..=32u8)
                .rev()
                .map(|shift| ((period << shift).div_ceil(u128::from(amount)), shift))
                // The most fraction bits that fit: the rounding of a byte's cost is what a limit in
                // bytes loses.
                .find(|(per_byte, _)| *per_byte < MAX_PER_BYTE)
                .ok_or_else(slow)?;
            // Every frame's cost is rounded up by less than a tick; the burst must still hold as
            // many of them as it says.
            let rounding = u128::from(burst / u64::from(MIN_FRAME));
            let tolerance = ((per_byte * u128::from(burst)) >> shift) + 1 + rounding;
            let frame = u64::from(max_frame);
            // By the largest frame, as the gate counts packets: smaller ones are then further below
            // the limit.
            let gate = gate(burst / frame, per_window / frame);
            let per_byte = u64::try_from(per_byte).map_err(|_| slow())?;
            (Tier::of_bytes(per_byte, shift, 0), tolerance, gate, Terms::BYTES)
        }
    };
    if tolerance > u128::from(MAX_TOLERANCE) {
        return Err(refuse(
            format!("a burst of {burst} takes longer than 13 days to refill at {rate}"),
            "choose a smaller burst or a higher rate",
        ));
    }
    let tier = if algorithm.is_bucket() {
        Tier { tolerance: tolerance as u64, ..tier }
    } else {
        compile_window(target, algorithm, &rate, max_frame)?
    };
    let terms =
        Terms { algorithm: algorithm.code(), ..Terms::of_bucket(amount, period_ns, burst, unit) };
    Ok(CompiledTier { tier, terms, gate })
}

/// The limit that a policy was compiled from, for whom it is; `None` for "no limit". What the kernel
/// has no part in, a ban and what becomes of it in a partition, is not in it.
pub fn decompile(target: Target, policy: &Policy) -> Option<Limit> {
    let tier = decompile_terms(&policy.first_terms)?;
    let also =
        if policy.whole().has_second() { decompile_terms(&policy.second_terms) } else { None };
    let enforce = !policy.whole().observes();
    let on_error = (policy.leased() as usize).checked_sub(1).and_then(|at| OnError::ALL.get(at));
    let scope = match on_error {
        Some(&on_error) => Scope::Strict { on_error },
        // What becomes of it in a partition is decided by the daemon, so no map has it.
        None if policy.whole().is_cluster() => Scope::Cluster { partition: Partition::default() },
        None => Scope::Local,
    };
    let reserve = policy.sharing.reserve as u8;
    Some(Amount { also, enforce, scope, reserve, ..Amount::new(tier) }.of(target))
}

/// The rate that a tier was compiled from; `None` for "no limit".
fn decompile_terms(terms: &Terms) -> Option<Spec> {
    let unit = match terms.unit {
        Terms::PACKETS => Unit::Packets,
        Terms::BYTES => Unit::Bytes,
        _ => return None,
    };
    let rate = Rate::from_parts(terms.rate, terms.period_ns, unit);
    let algorithm = Algorithm::from_code(terms.algorithm);
    Some(Spec { rate, burst: terms.burst, algorithm })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ban;
    use limiter_common::gcra::decide;
    use limiter_common::share::CostMultiplier;

    fn limit(rate: &str, burst: u64) -> Limit {
        let limit = Limit::new(Target::DEFAULT, rate.parse().unwrap(), None).unwrap();
        Amount { burst, ..limit.amount }.of(limit.target)
    }

    fn compiled(rate: &str, burst: u64) -> Policy {
        compile(&limit(rate, burst), 27, 1514).unwrap()
    }

    #[test]
    fn a_policy_remembers_its_limit() {
        for (rate, burst) in [("400/minute", 40), ("10mbit", 64_000), ("1000pps", 2000)] {
            let limit = limit(rate, burst);
            let policy = compile(&limit, 27, 1514).unwrap();
            assert_eq!(decompile(Target::DEFAULT, &policy), Some(limit));
            let observed = compile(&limit.enforced(false), 27, 1514).unwrap();
            assert!(observed.whole().observes() && observed.first_terms == policy.first_terms);
            assert_eq!(decompile(Target::DEFAULT, &observed), Some(limit.enforced(false)));
        }
        assert_eq!(decompile(Target::DEFAULT, &Policy::unlimited(16)), None);
        let target = "default aggregate".parse().unwrap();
        let limit = limit("1000pps", 2000).amount.of(target).reserving(35).unwrap();
        let policy = compile(&limit, 27, 1514).unwrap().shared_by_sources(4, 35);
        assert_eq!(decompile(target, &policy), Some(limit));
    }

    #[test]
    fn packets_are_looked_up_where_a_ban_asks_for_evidence() {
        for (unverified, seeks) in [(None, false), (Some(true), false), (Some(false), true)] {
            let ban =
                unverified.map(|unverified| Ban { after: 5, factor: 10, lasts: 60, unverified });
            let policy = compile(&limit("10pps", 5).banning(ban).unwrap(), 27, 1514).unwrap();
            assert_eq!(policy.whole().seeks_evidence(), seeks);
            assert_eq!(decompile(Target::DEFAULT, &policy), Some(limit("10pps", 5)));
        }
    }

    #[test]
    fn packets_cost_their_share_of_the_period() {
        let policy = compiled("1000pps", 2000);
        assert_eq!(policy.first.fixed, 1_000_000 * TICKS_PER_NS);
        assert_eq!(policy.first.tolerance, 2_000_000_000 * TICKS_PER_NS);
        assert_eq!((policy.gate, policy.first_terms.unit), (16, Terms::PACKETS));
        assert_eq!(compiled("400/minute", 40).first.fixed, 150_000_000 * TICKS_PER_NS);
        assert_eq!(compiled("400/minute", 40).gate, 1);
        assert_eq!(compiled("100pps", 40).gate, 5);
    }

    #[test]
    fn rounding_loses_less_than_a_tenth_of_a_percent_up_to_14_mpps() {
        for pps in [3u64, 999, 7_000_000, 14_880_952] {
            let policy = compiled(&format!("{pps}pps"), 64).first;
            let exact = 16e9 / pps as f64;
            let got = policy.fixed as f64;
            assert!(got >= exact && got <= exact * 1.001, "{pps}: {got} {exact}");
        }
    }

    #[test]
    fn a_byte_burst_holds_as_many_frames_as_it_says() {
        for rate in ["3mbyte/s", "10mbit", "1gbyte/s", "100gbit", "100byte/s", "7kbyte/s"] {
            for (frames, size) in [(10u64, 1514u32), (100, 64), (3, 999)] {
                let policy = compiled(rate, (frames * u64::from(size)).max(1514)).first;
                let now = 1 << 50;
                let mut tat = 0;
                for frame in 0..frames {
                    let cost = policy.cost(size);
                    let next = decide(tat, now, cost, policy.tolerance);
                    tat = next.unwrap_or_else(|| panic!("{rate}: frame {frame} of {frames}"));
                }
            }
        }
    }

    #[test]
    fn gates_of_byte_limits_count_full_frames() {
        // 10 mbit earn 110 full frames in a window; the burst of 1.5 MB is 990.
        assert_eq!(compiled("10mbit", 1_500_000).gate, 16);
        assert_eq!(compiled("10mbit", 64_000).gate, 5);
        assert_eq!(compiled("10mbit", 1514).gate, 1);
    }

    fn share(part: f64) -> Floor {
        Floor::new(Multiplier::from_units((part * (1u64 << 32) as f64) as u64), 0)
    }

    #[test]
    fn a_limit_of_the_cluster_has_the_gate_of_its_floor_and_is_the_same_limit() {
        let limit = limit("1000pps", 2000);
        let scope = Scope::Cluster { partition: Partition::default() };
        let whole = compile(&limit, 27, 1514).unwrap();
        for (part, gate) in [(1.0, 16), (0.05, 4), (0.01, 1), (0.0, 1)] {
            let policy = compile_shared(&limit, &share(part), 27, 1514).unwrap();
            assert_eq!(policy.gate, gate, "{part}");
            assert!(policy.whole().is_cluster() && (policy.floor().part() - part).abs() < 1e-4);
            let fixed = whole.first.fixed;
            assert_eq!(policy.first.fixed, whole.first.fixed);
            // Each host's packet, and burst floors, are beside it.
            assert_eq!(2 * policy.first.tolerance + fixed, whole.first.tolerance);
            let many = compile_shared(&limit, &share(part).among(3000), 27, 1514).unwrap();
            assert_eq!(many.first.tolerance, 0);
            assert_eq!(decompile(Target::DEFAULT, &policy), Some(limit.scoped(scope).unwrap()));
        }
        let mut two = limit.scoped(scope).unwrap();
        two.also = Some(self::limit("10mbit", 64_000).tier());
        let policy = compile_shared(&two, &share(0.5), 27, 1514).unwrap();
        // Half of 42 frames at once.
        assert_eq!((policy.gate, policy.floor()), (2, share(0.5).share()));
        assert_eq!(decompile(Target::DEFAULT, &policy), Some(two));
    }

    #[test]
    fn who_gets_a_bucket_after_a_raise_finds_it_no_fuller_than_before() {
        let limit = limit("1000pps", 2000);
        let at = 5_000_000_000 * TICKS_PER_NS;
        let raised = share(0.01).becoming(share(0.04).share(), at);
        let policy = compile_shared(&limit, &raised, 27, 1514).unwrap();
        // Home shares of 0.2 and 0.8: a quarter of all that there is room for is left, but for what rounding takes.
        let room =
            CostMultiplier::from_share(policy.floor(), policy.home).room(policy.first.tolerance);
        let due = (at + room / 4 * 3) as f64;
        let [filled, _] = policy.filled();
        assert!(filled as f64 >= due && filled as f64 <= due + (1u64 << 33) as f64);
        assert_eq!(compile_shared(&limit, &share(0.04), 27, 1514).unwrap().filled(), [0; 2]);
    }

    #[test]
    fn a_strict_limit_holds_a_packet_without_a_lease_and_a_seventh_of_the_burst_with_a_whole_one() {
        for on_error in OnError::ALL {
            let limit = limit("1000pps", 1401).scoped(Scope::Strict { on_error }).unwrap();
            let policy = compile_leased(&limit, on_error, 27, 1514).unwrap();
            assert_eq!(policy.first.tolerance, 200 * policy.first.fixed);
            assert_eq!((policy.gate, policy.home), (1, 0));
            assert!(policy.whole().is_cluster() && (policy.floor().part() * 65536.0) == 1.0);
            assert_eq!(decompile(Target::DEFAULT, &policy), Some(limit));
        }
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        let shared = |limit: &Limit| compile_shared(limit, &share(0.5), 27, 1514);
        assert!(shared(&limit("1/hour", 1)).is_err());
        assert!(shared(&limit("10/hour", 1)).is_err());
        assert!(shared(&limit("20/hour", 1)).is_ok());
    }

    #[test]
    fn what_sources_share_is_divided_without_a_packet_for_each_host() {
        let mut aggregate = limit("1000pps", 100);
        aggregate.target.aggregate = true;
        let policy = compile_shared(&aggregate, &share(0.5).among(30), 27, 1514).unwrap();
        assert!(policy.whole().is_cluster() && policy.floor() == share(0.5).share());
        assert_eq!(
            (policy.first.tolerance, policy.gate),
            (compiled("1000pps", 100).first.tolerance, MAX_GATE)
        );
        assert_eq!(policy.filled(), [0; 2]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused() {
        for (rate, burst) in [("1/hour", 1000), ("10pps", u64::MAX), ("1byte/s", u64::MAX)] {
            let refused = compile(&limit(rate, burst), 27, 1514);
            assert!(refused.is_err(), "{rate} {burst}: {refused:?}");
        }
    }
}
