use proptest::prelude::*;

use super::*;

/// A proxy as RLQS describes it: it reports, and keeps what it was assigned until that ends.
struct Envoy {
    id: u64,
    /// Units that come in 10 ms, in thousandths.
    demand: u64,
    due: u64,
    asked: u64,
    /// What is on its way, and when it arrives.
    coming: Option<(Assignment, u64)>,
    held: Assignment,
    until: u64,
    tokens: f64,
}

/// Steps of time, 10 ms.
const STEP_MS: u64 = 10;

/// From when on what is admitted is counted.
const WARM_MS: u64 = 12_000;

fn at(ms: u64) -> Ticks {
    (1 << 59) + ticks(Duration::from_millis(ms))
}

impl Envoy {
    fn new(id: u64, demand: u64) -> Self {
        Self {
            id,
            demand,
            due: 0,
            asked: 0,
            coming: None,
            held: Assignment::Deny,
            until: 0,
            tokens: 0.0,
        }
    }

    /// What it admits in a step.
    fn step(&mut self, now: u64) -> u64 {
        if let Some((assignment, _)) = self.coming.take_if(|(_, arrives)| *arrives <= now) {
            if assignment != self.held || self.until <= now {
                self.tokens = match assignment {
                    Assignment::Deny => 0.0,
                    Assignment::Bucket { tokens, .. } => tokens.into(),
                };
            }
            (self.held, self.until) = (assignment, now + TTL.as_millis() as u64);
        }
        self.due += self.demand;
        let asked = self.due / 1_000;
        self.due %= 1_000;
        self.asked += asked;
        let Assignment::Bucket { tokens, per_fill, every } = self.held else { return 0 };
        if self.until <= now {
            return 0;
        }
        let filled = f64::from(per_fill) * STEP_MS as f64 / 1e3 / every.as_secs_f64();
        self.tokens = (self.tokens + filled).min(tokens.into());
        let admitted = asked.min(self.tokens as u64);
        self.tokens -= admitted as f64;
        admitted
    }
}

/// All that several proxies admit is within the limit: what a bucket of all of it would have said to each unit.
struct Judge {
    bucket: TokenBucket,
    state: u64,
    admitted: u64,
}

impl Judge {
    fn new(limit: &Limit) -> Self {
        let burst = limit.burst.unwrap_or(limit.requests);
        let bucket = TokenBucket::new(limit.requests, ticks(limit.window), burst).unwrap();
        Self { bucket, state: 0, admitted: 0 }
    }

    fn judge(&mut self, admitted: u64, now: u64) -> bool {
        // An earlier process may have assigned all until then; and parts are found.
        self.admitted += if now < WARM_MS { 0 } else { admitted };
        // Half a step's rounding of the simulated buckets.
        self.bucket.take(std::slice::from_mut(&mut self.state), at(now + STEP_MS), admitted)
    }
}

/// Runs proxies with such demands and delays; `cut` says when one reports, and gets answers.
fn run(
    limit: &Limit,
    demands: &[u64],
    seconds: u64,
    delay: impl Fn(u64) -> u64,
    change: impl Fn(u64, &mut Vec<Envoy>) -> Option<u64>,
) -> (u64, bool) {
    let mut quota = Quota::new(limit, at(0), at(0)).unwrap();
    let mut envoys: Vec<_> =
        (0u64..).zip(demands).map(|(id, &demand)| Envoy::new(id, demand)).collect();
    let mut judge = Judge::new(limit);
    let mut is_within = true;
    for now in (0..seconds * 1_000).step_by(STEP_MS as usize) {
        let cut = change(now, &mut envoys);
        let mut admitted = 0;
        for envoy in &mut envoys {
            admitted += envoy.step(now);
            if cut == Some(envoy.id) {
                // Its connection ends. It comes again with a new one, which has another number: that is told as the same here.
                quota.leave(envoy.id);
                continue;
            }
            if now % 5_000 == envoy.id * 1_170 % 5_000 {
                quota.report(envoy.id, envoy.asked, at(now));
                envoy.asked = 0;
            }
            if now % 500 == envoy.id * 170 % 500 {
                let assignment = quota.assign(envoy.id, at(now));
                envoy.coming = assignment.map(|assignment| (assignment, now + delay(now)));
            }
        }
        is_within &= judge.judge(admitted, now);
    }
    (judge.admitted, is_within)
}

fn limit(requests: u64, burst: u64) -> Limit {
    Limit { burst: Some(burst), ..Limit::new(requests, Duration::from_secs(1)) }
}

#[test]
fn uneven_load_uses_nearly_all_of_the_limit_and_no_more() {
    // Ten times the limit at one, a tenth of it at the others.
    let (admitted, is_within) =
        run(&limit(1_000, 200), &[100_000, 1_000, 1_000], 60, |_| 20, |_, _| None);
    assert!(is_within);
    assert!(admitted > 43_200, "{admitted}");
}

#[test]
fn who_is_cut_off_keeps_its_part_to_its_end_and_the_others_get_it_then() {
    let cut = |now, _: &mut Vec<Envoy>| (20_000..40_000).contains(&now).then_some(0);
    let (admitted, is_within) = run(&limit(1_000, 200), &[50_000, 30_000, 30_000], 60, |_| 20, cut);
    assert!(is_within);
    assert!(admitted > 43_200, "{admitted}");
}

#[test]
fn load_that_moves_finds_its_part_again() {
    let moves = |now: u64, envoys: &mut Vec<Envoy>| {
        for envoy in envoys {
            envoy.demand = if now / 10_000 % 3 == envoy.id { 50_000 } else { 500 };
        }
        None
    };
    let (admitted, is_within) = run(&limit(1_000, 200), &[0, 0, 0], 60, |_| 20, moves);
    assert!(is_within);
    // A report tells of it after 5 s, of ten until the load moves on.
    assert!(admitted > 15_000, "{admitted}");
}

#[test]
fn only_token_buckets_are_divided() {
    let log = Limit { algorithm: Choice::SlidingLog, burst: None, ..limit(10, 1) };
    assert!(Quota::new(&log, at(0), at(0)).is_none());
    assert!(Quota::new(&limit(0, 1), at(0), at(0)).is_none());
    // With a burst of one there is no half for each: nothing is assigned rather than too much.
    let mut quota = Quota::new(&limit(10, 1), at(0), at(0)).unwrap();
    quota.report(1, 0, at(1_000));
    assert_eq!(quota.assign(1, at(1_000)), None);
    assert_eq!(quota.assign(1, at(10_000)), Some(Assignment::Deny));
    quota.leave(1);
    quota.pass(at(20_000));
    assert!(quota.is_idle());
}

proptest! {
    #[test]
    fn no_order_of_reports_delays_and_cuts_exceeds_the_limit(
        requests in 20u64..5_000,
        burst in 2u64..2_000,
        demands in prop::collection::vec(0u64..80_000, 1..5),
        delays in prop::collection::vec(0u64..950, 7),
        cuts in prop::collection::vec(prop::option::of(0u64..5), 9),
        changes in prop::collection::vec(0u64..80_000, 9),
    ) {
        let change = |now: u64, envoys: &mut Vec<Envoy>| {
            let at = (now / 2_300) as usize % 9;
            if now.is_multiple_of(2_300) {
                let which = at % envoys.len();
                envoys[which].demand = changes[at];
            }
            cuts[at]
        };
        let delay = |now: u64| delays[(now / 130) as usize % 7];
        let (_, is_within) = run(&limit(requests, burst), &demands, 30, delay, change);
        prop_assert!(is_within);
    }
}
