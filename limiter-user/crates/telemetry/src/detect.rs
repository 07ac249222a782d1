//! What many samples or events mean together. Time is an argument, in s since any one moment.

use std::collections::{BTreeSet, HashMap, VecDeque};

use ipnet::IpNet;

/// Seconds that one of the hour's values stands for.
// Means of ten seconds: the median is then of 360 values, cheap enough to sort for each new one.
const VALUE: u64 = 10;
/// Values of an hour.
const VALUES: usize = 360;
/// Values before anything is said: a minute.
// A median of fewer values is whatever came first.
const ENOUGH: usize = 6;
/// Times the median that are a jump, and below which it is over.
const JUMP: f64 = 10.0;
const OVER: f64 = 5.0;
/// Distinct sources under which no jump matters.
// A host with three sources at night has ten times that with every crawler.
const FEW: f64 = 1000.0;

/// Finds that distinct sources are many times what is usual: likely spoofed ones.
#[derive(Clone, Debug, Default)]
pub struct Jump {
    /// The means of ten seconds each, of the last hour.
    hour: VecDeque<f64>,
    /// Which ten seconds are being summed, their sum and how many there were.
    current: (u64, f64, u32),
    median: f64,
    high: bool,
}

impl Jump {
    /// Knows what was usual before: distinct sources in each second of the last hour, the oldest first,
    /// as far as somebody counted.
    pub fn after(hour: &[Option<f64>]) -> Self {
        let mut jump = Self::default();
        for seconds in hour.chunks(VALUE as usize) {
            let known: Vec<f64> = seconds.iter().flatten().copied().collect();
            if !known.is_empty() {
                jump.close(known.iter().sum::<f64>() / known.len() as f64);
            }
        }
        jump
    }

    /// Notes the distinct sources of a window that ends `now`. Returns the median of the hour if they
    /// have just become many times that.
    pub fn note(&mut self, now: u64, sources: f64) -> Option<f64> {
        let (since, sum, count) = self.current;
        let value = now / VALUE;
        if value == since && count > 0 {
            self.current = (since, sum + sources, count + 1);
        } else {
            if count > 0 {
                self.close(sum / f64::from(count));
            }
            self.current = (value, sources, 1);
        }
        if self.hour.len() < ENOUGH {
            return None;
        }
        let usual = self.median.max(1.0);
        // Two thresholds: a value that goes to and fro at one of them would be told again and again.
        if self.high {
            self.high = sources >= usual * OVER;
            return None;
        }
        self.high = sources >= (usual * JUMP).max(FEW);
        self.high.then_some(self.median)
    }

    fn close(&mut self, value: f64) {
        if self.hour.len() == VALUES {
            self.hour.pop_front();
        }
        self.hour.push_back(value);
        // The median, not the mean: an attack of minutes does not become what is usual.
        let mut sorted: Vec<_> = self.hour.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.median = sorted[sorted.len() / 2];
    }
}

/// Sources of a neighbourhood that must be limited at once.
const SIBLINGS: usize = 16;
/// How long a source counts, s.
const AT_ONCE: u64 = 60;
/// How long a neighbourhood is not told again, s.
const QUIET: u64 = 300;
/// Neighbourhoods that are watched at the most.
const MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
struct Neighbours {
    since: u64,
    limited: BTreeSet<IpNet>,
    told: Option<u64>,
}

/// Finds that many sources of one neighbourhood are limited: of an IPv4 /24, or an IPv6 /48.
#[derive(Clone, Debug, Default)]
pub struct Spread(HashMap<IpNet, Neighbours>);

impl Spread {
    /// Notes that a source was limited at `now`. Returns its neighbourhood, and how many sources of it
    /// were limited, when that becomes many.
    pub fn note(&mut self, now: u64, source: IpNet) -> Option<(IpNet, u64)> {
        let length = if source.addr().is_ipv4() { 24 } else { 48 };
        if source.prefix_len() <= length {
            return None;
        }
        let prefix = IpNet::new(source.addr(), length).ok()?.trunc();
        if self.0.len() >= MAX && !self.0.contains_key(&prefix) {
            self.0.retain(|_, known| now.saturating_sub(known.since) < AT_ONCE);
            if self.0.len() >= MAX {
                // So many neighbourhoods are no neighbourhood's doing.
                return None;
            }
        }
        let known = self.0.entry(prefix).or_default();
        if now.saturating_sub(known.since) >= AT_ONCE {
            // `told` stays: a neighbourhood that is limited all day is told every few minutes, not every one.
            known.since = now;
            known.limited.clear();
        }
        // A /48 has 2^16 sources: no more of them are kept than it takes to tell.
        if known.limited.len() < SIBLINGS {
            known.limited.insert(source);
        }
        let quiet = known.told.is_some_and(|told| now.saturating_sub(told) < QUIET);
        if known.limited.len() < SIBLINGS || quiet {
            return None;
        }
        known.told = Some(now);
        Some((prefix, SIBLINGS as u64))
    }

    /// The neighbourhoods of which many sources were limited within the minute before `now`.
    pub fn recent(&self, now: u64) -> Vec<IpNet> {
        let many = |known: &Neighbours| {
            known.limited.len() >= SIBLINGS && now.saturating_sub(known.since) < AT_ONCE
        };
        let mut found: Vec<_> =
            self.0.iter().filter(|(_, known)| many(known)).map(|(prefix, _)| *prefix).collect();
        found.sort_unstable();
        found
    }
}

/// Shares of busy buckets from which the table is nearly full, and below which it no longer is. A slow limit alone
/// takes three quarters at the most.
const NEARLY_FULL: f64 = 0.65;
const ROOM: f64 = 0.5;

/// Finds that the bucket table fills up.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    high: bool,
}

impl Pressure {
    /// Notes the share of buckets that cannot be given to others. Returns whether it is high, if that
    /// has changed.
    pub fn note(&mut self, busy: f64) -> Option<bool> {
        let high = if self.high { busy > ROOM } else { busy >= NEARLY_FULL };
        (std::mem::replace(&mut self.high, high) != high).then_some(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_told_once_and_again_after_it_was_over() {
        let mut jump = Jump::default();
        assert!((0..60).all(|now| jump.note(now, 1e6).is_none()), "nothing is usual yet");
        let mut jump = Jump::default();
        for now in 0..600 {
            assert_eq!(jump.note(now, 100.0 + f64::from(now as u32 % 7)), None);
        }
        assert_eq!(jump.note(600, 999.0), None, "few");
        let median = jump.note(601, 40_000.0).unwrap();
        assert!((100.0..107.0).contains(&median), "{median}");
        assert!((602..900).all(|now| jump.note(now, 40_000.0).is_none()));
        assert_eq!(jump.note(900, 100.0), None);
        assert!(jump.note(901, 40_000.0).is_some());
        // What goes on for most of an hour is usual.
        for now in 902..8000 {
            jump.note(now, 40_000.0);
        }
        jump.note(8000, 10.0);
        assert_eq!(jump.note(8001, 50_000.0), None);
        assert_eq!(jump.hour.len(), VALUES);
    }

    #[test]
    fn what_was_usual_before_a_restart_is_known() {
        let mut hour = vec![Some(200.0); 1000];
        hour.extend([None; 2000]);
        hour.extend([Some(50.0); 35]);
        let mut jump = Jump::after(&hour);
        assert_eq!((jump.hour.len(), jump.hour[103]), (104, 50.0), "gaps are no values");
        assert_eq!(jump.note(7, 1999.0), None);
        assert_eq!(jump.note(8, 2000.0), Some(200.0));
        let mut little = Jump::after(&[Some(200.0); 50]);
        assert_eq!(little.note(7, 1e6), None, "50 s are too few");
        assert_eq!(Jump::after(&vec![Some(1.0); 9999]).hour.len(), VALUES);
    }

    #[test]
    fn siblings_that_are_limited_at_once_are_a_spread() {
        let mut spread = Spread::default();
        let source = |i: u32| format!("198.51.100.{i}/32").parse::<IpNet>().unwrap();
        for i in 0..15 {
            assert_eq!(spread.note(10, source(i)), None);
            assert_eq!(spread.note(10, source(i)), None, "the same again");
        }
        let found = spread.note(20, source(15));
        assert_eq!(found, Some(("198.51.100.0/24".parse().unwrap(), 16)));
        assert!((16..200).all(|i| spread.note(21, source(i)).is_none()), "told once");
        assert_eq!(spread.recent(59), [found.unwrap().0]);
        assert_eq!(spread.recent(60), [], "a minute later");
        // Slowly, one after the other, they are none.
        assert!((0..40).all(|i| spread.note(1000 + 10 * u64::from(i), source(i)).is_none()));
        let v6 = |i: u32| format!("2001:db8:1:{i:x}::/64").parse::<IpNet>().unwrap();
        let found = (0..16).find_map(|i| spread.note(9000, v6(i)));
        assert_eq!(found.unwrap().0, "2001:db8:1::/48".parse().unwrap());
        // Sources that are neighbourhoods themselves have no siblings.
        assert_eq!(spread.note(9000, "10.0.0.0/24".parse().unwrap()), None);
    }

    #[test]
    fn neighbourhoods_are_bounded() {
        let mut spread = Spread::default();
        for i in 0..20_000_u32 {
            let source = IpNet::from(std::net::IpAddr::from((i << 8).to_be_bytes()));
            spread.note(100, source);
        }
        assert_eq!(spread.0.len(), MAX);
        spread.note(200, "203.0.113.1/32".parse().unwrap());
        assert_eq!(spread.0.len(), 1, "old ones make room");
    }

    #[test]
    fn pressure_has_hysteresis() {
        let mut pressure = Pressure::default();
        let noted: Vec<_> = [0.4, 0.64, 0.65, 0.9, 0.6, 0.66, 0.5, 0.6]
            .into_iter()
            .map(|busy| pressure.note(busy))
            .collect();
        assert_eq!(noted, [None, None, Some(true), None, None, None, Some(false), None]);
    }
}
