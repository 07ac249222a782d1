//! What sources send, and to which hosts.

use std::f64::consts::TAU;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::Span;
use super::rng::Rng;
use model::Rate;

/// How the packets of sources come to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// To all hosts alike.
    Spread,
    /// To the hosts by Zipf's law, in an order of each source's own; and the sources send by it, too.
    Zipf,
    /// All packets of a source to one host.
    One,
    /// All to one host, and every `period` to another one.
    Hopping,
    /// All to one host, and from `at` on to another one.
    Step,
    /// Nothing, and from `at` on a flood on all hosts.
    Cold,
    /// To all hosts, as days go: each host's busiest hour is another one, and `period` is a day.
    Diurnal,
}

/// What a pattern goes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Among {
    /// Hosts, each for itself.
    #[default]
    Hosts,
    /// Regions: what comes to one is spread over its hosts.
    Regions,
}

/// Demand of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Demand {
    /// How it is spread over hosts and time.
    pub pattern: Pattern,
    /// Whether it is spread over hosts, or over regions as if each were one.
    pub among: Among,
    /// Sources.
    pub keys: usize,
    /// What a source sends, as a multiple of its limit; the heaviest one, by Zipf's law.
    pub load: f64,
    /// By how much what a host gets of a source goes up and down, as a part of it, every 100 ms.
    pub noise: f64,
    /// How long until the source hops, or a day.
    pub period: Span,
    /// When it steps or begins.
    pub at: Span,
}

impl Default for Demand {
    fn default() -> Self {
        let second = Span(Duration::from_secs(1));
        Self {
            pattern: Pattern::Spread,
            among: Among::Hosts,
            keys: 2,
            load: 4.0,
            noise: 0.1,
            period: second,
            at: second,
        }
    }
}

/// Zipf's exponent, as that of real traffic is found to be.
const EXPONENT: f64 = 1.1;

/// Demand with a seed.
#[derive(Debug)]
pub(super) struct Traffic {
    demand: Demand,
    hosts: usize,
    /// The hosts of each place: one, or those of a region.
    places: Vec<Vec<usize>>,
    /// For each source, what it sends, and its places in an order of its own.
    sources: Vec<(f64, Vec<usize>)>,
    zipf: Vec<f64>,
    /// For each source and host.
    noise: Vec<f64>,
    noisy_since: Option<u64>,
    rng: Rng,
}

impl Traffic {
    /// With the region of each host.
    pub(super) fn new(demand: Demand, regions: &[usize], mut rng: Rng) -> Self {
        let hosts = regions.len();
        let places: Vec<Vec<usize>> = match demand.among {
            Among::Hosts => (0..hosts).map(|host| vec![host]).collect(),
            Among::Regions => {
                let count = regions.iter().max().map_or(0, |last| last + 1);
                let of = |region| (0..hosts).filter(|host| regions[*host] == region).collect();
                (0..count).map(of).collect()
            }
        };
        let zipf = |n: usize| (1..=n).map(|rank| (rank as f64).powf(-EXPONENT)).collect::<Vec<_>>();
        let by_rank = zipf(demand.keys);
        let load = |key: usize| match demand.pattern {
            Pattern::Zipf => demand.load * by_rank[key],
            _ => demand.load,
        };
        // An order of each one's own, or one host would be the busiest for all sources.
        let sources = (0..demand.keys).map(|key| (load(key), rng.order(places.len()))).collect();
        let noise = vec![1.0; demand.keys * hosts];
        let zipf = zipf(places.len());
        Self { demand, hosts, places, sources, zipf, noise, noisy_since: None, rng }
    }

    /// When what the hosts get changes on purpose, s.
    pub(super) fn steps(&self, duration: f64) -> Vec<f64> {
        let period = self.demand.period.seconds();
        match self.demand.pattern {
            Pattern::Step | Pattern::Cold => vec![self.demand.at.seconds()],
            Pattern::Hopping => {
                (1..).map(|n| f64::from(n) * period).take_while(|at| *at < duration).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Puts into `rates` what a source sends to each host at `real` ns, in limits; only hosts that are
    /// `there` get anything.
    pub(super) fn rates(&mut self, key: usize, real: u64, there: &[bool], rates: &mut [f64]) {
        let now = real as f64 / 1e9;
        // Before the pattern is looked at: what chance there is must not depend on which hosts are there.
        self.ruffle(real);
        rates.fill(0.0);
        let (load, order) = &self.sources[key];
        let Demand { pattern, period, at, .. } = self.demand;
        let after = now >= at.seconds();
        let count = |place: usize| self.places[place].iter().filter(|host| there[**host]).count();
        // By the network's routes the next one that is there gets what would come to a place that is not.
        let places = self.places.len();
        let nth = |n: usize| (n..n + places).map(|i| order[i % places]).find(|p| count(*p) > 0);
        let only = match pattern {
            Pattern::One => Some(0),
            Pattern::Step => Some(usize::from(after)),
            Pattern::Hopping => Some((now / period.seconds()) as usize),
            Pattern::Spread | Pattern::Zipf | Pattern::Cold | Pattern::Diurnal => None,
        };
        if let Some(n) = only {
            if let Some(place) = nth(n) {
                let each = load / count(place) as f64;
                for &host in self.places[place].iter().filter(|host| there[**host]) {
                    rates[host] = each * self.noise[key * self.hosts + host];
                }
            }
            return;
        }
        let day = now / period.seconds();
        let weight = |rank: usize| match pattern {
            Pattern::Zipf => self.zipf[rank],
            Pattern::Diurnal => 1.0 + 0.9 * (TAU * (day + rank as f64 / places as f64)).cos(),
            Pattern::Cold if !after => 0.0,
            _ => 1.0,
        };
        let mut sum = 0.0;
        for (rank, &place) in order.iter().enumerate() {
            let count = count(place);
            let weight = if count > 0 { weight(rank) } else { 0.0 };
            sum += weight;
            for &host in self.places[place].iter().filter(|host| there[**host]) {
                rates[host] = weight / count as f64;
            }
        }
        // Nobody is there, or nothing is sent yet: a division would make the rates NaN, which no
        // comparison would find.
        if sum <= 0.0 {
            return;
        }
        let load = match pattern {
            Pattern::Diurnal => load * (0.55 - 0.45 * (TAU * day).cos()),
            _ => *load,
        };
        for (host, rate) in rates.iter_mut().enumerate() {
            *rate *= load / sum * self.noise[key * self.hosts + host];
        }
    }

    fn ruffle(&mut self, real: u64) {
        const STEP: u64 = 100_000_000;
        if self.demand.noise > 0.0 && self.noisy_since.is_none_or(|since| real >= since + STEP) {
            // From the step's beginning on, so that another tick brings the same noise.
            self.noisy_since = Some(real - real % STEP);
            let noise = self.demand.noise;
            self.noise.iter_mut().for_each(|one| *one = self.rng.between(1.0 - noise, 1.0 + noise));
        }
    }
}

/// A source that keeps to half of its limit: a packet after the other.
#[derive(Clone, Debug)]
pub(super) struct Conforming {
    pattern: Pattern,
    /// When it begins, s.
    since: f64,
    /// What a packet is of what the limit lets through in a second.
    size: f64,
    sent: u64,
}

/// A packet of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Packet {
    /// When it is sent, s.
    pub(super) at: f64,
    /// In the time that the whole limit takes for it, s.
    pub(super) size: f64,
    /// As its how manyth stay with a host the source sends it.
    pub(super) contact: usize,
    /// To which host.
    pub(super) host: usize,
}

impl Conforming {
    /// How long it stays with a host, if it hops, s: longer than it is remembered there, so that it is new when it is back.
    const STAYS: f64 = 4.0;

    /// One that begins so many seconds `since` the start.
    pub(super) fn new(pattern: Pattern, since: f64, rate: Rate) -> Self {
        Self { pattern, since, size: 1.0 / rate.per_second(), sent: 0 }
    }

    /// Its next packet that has been sent by `now`, ns, to one of the hosts that are `there`.
    pub(super) fn next(&mut self, now: u64, there: &[bool]) -> Option<Packet> {
        let at = self.since + 2.0 * self.size * self.sent as f64;
        if at > now as f64 / 1e9 {
            return None;
        }
        let turn = match self.pattern {
            Pattern::Spread => self.sent as usize,
            Pattern::Hopping => (at / Self::STAYS) as usize,
            _ => 0,
        };
        let n = there.len();
        // While no host is there it waits.
        let host = (turn..turn + n).map(|i| i % n).find(|i| there[*i])?;
        self.sent += 1;
        let contact = if self.pattern == Pattern::Spread { host } else { turn };
        Some(Packet { at, size: self.size, contact, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(pattern: Pattern, real: f64, there: [bool; 3]) -> [f64; 3] {
        let demand = Demand { pattern, noise: 0.0, load: 3.0, ..Demand::default() };
        let mut traffic = Traffic::new(demand, &[0; 3], Rng::new(5));
        let mut rates = [9.0; 3];
        traffic.rates(1, (real * 1e9) as u64, &there, &mut rates);
        rates
    }

    fn sum(rates: [f64; 3]) -> f64 {
        rates.iter().sum()
    }

    #[test]
    fn patterns_send_where_they_say() {
        const ALL: [bool; 3] = [true; 3];
        assert_eq!(rates(Pattern::Spread, 0.0, ALL), [1.0; 3]);
        assert_eq!(rates(Pattern::Cold, 0.5, ALL), [0.0; 3]);
        assert_eq!(rates(Pattern::Cold, 1.5, ALL), [1.0; 3]);
        let one = rates(Pattern::One, 5.0, ALL);
        assert!(one.contains(&3.0) && sum(one) == 3.0);
        assert_eq!(rates(Pattern::Step, 0.9, ALL), rates(Pattern::Hopping, 0.9, ALL));
        assert_eq!(rates(Pattern::Step, 1.1, ALL), rates(Pattern::Hopping, 1.1, ALL));
        assert_ne!(rates(Pattern::Step, 0.9, ALL), rates(Pattern::Step, 1.1, ALL));
        let zipf = rates(Pattern::Zipf, 0.0, ALL);
        assert!(
            (sum(zipf) - 3.0 * 2_f64.powf(-EXPONENT)).abs() < 1e-9,
            "the second source: {zipf:?}"
        );
        assert!((sum(rates(Pattern::Diurnal, 0.5, ALL)) - 3.0).abs() < 1e-9);
        assert!((sum(rates(Pattern::Diurnal, 0.0, ALL)) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn patterns_go_over_regions_as_over_hosts() {
        let rates = |pattern, at: f64, there: [bool; 4]| {
            let among = Among::Regions;
            let demand = Demand { pattern, among, noise: 0.0, load: 3.0, ..Demand::default() };
            let mut traffic = Traffic::new(demand, &[0, 1, 0, 1], Rng::new(5));
            let mut rates = [9.0; 4];
            traffic.rates(1, (at * 1e9) as u64, &there, &mut rates);
            rates
        };
        assert_eq!(rates(Pattern::Spread, 0.0, [true; 4]), [0.75; 4]);
        let (before, after) =
            (rates(Pattern::Step, 0.0, [true; 4]), rates(Pattern::Step, 2.0, [true; 4]));
        assert!(before == [1.5, 0.0, 1.5, 0.0] || before == [0.0, 1.5, 0.0, 1.5], "{before:?}");
        assert_eq!(before.map(|rate| 1.5 - rate), after);
        // Who is left in a region gets what comes to it, and the other one if there is nobody.
        let alone = rates(Pattern::Spread, 0.0, [false, true, true, true]);
        assert_eq!(alone, [0.0, 0.75, 1.5, 0.75]);
        assert_eq!(rates(Pattern::One, 0.0, [false, true, false, false]), [0.0, 3.0, 0.0, 0.0]);
    }

    #[test]
    fn hosts_that_are_gone_get_nothing_and_others_all() {
        for pattern in [Pattern::Spread, Pattern::One, Pattern::Hopping, Pattern::Step] {
            for there in [[false, true, true], [false, false, true], [true, false, true]] {
                let rates = rates(pattern, 0.0, there);
                assert!((sum(rates) - 3.0).abs() < 1e-9, "{pattern:?}: {rates:?}");
                assert!(rates.iter().zip(there).all(|(rate, there)| there || *rate == 0.0));
            }
            assert_eq!(rates(pattern, 0.0, [false; 3]), [0.0; 3]);
        }
    }

    #[test]
    fn who_conforms_sends_half_of_the_limit_to_whom_it_says() {
        let rate: Rate = "20pps".parse().unwrap();
        let sent = |pattern, there: &[bool]| {
            let mut source = Conforming::new(pattern, 1.0, rate);
            std::iter::from_fn(|| source.next(9_000_000_000, there)).collect::<Vec<_>>()
        };
        let one = sent(Pattern::One, &[true; 3]);
        assert_eq!((one.len(), one[1].at, one[1].size), (81, 1.1, 0.05));
        assert!(one.iter().all(|packet| packet.host == 0));
        let hosts = |packets: &[Packet]| packets.iter().map(|it| it.host).collect::<Vec<_>>();
        assert_eq!(hosts(&sent(Pattern::Spread, &[true, false, true])[..4]), [0, 2, 2, 0]);
        let hops = sent(Pattern::Hopping, &[true; 2]);
        assert_eq!(
            [29, 30, 69, 70].map(|n| (hops[n].contact, hops[n].host)),
            [(0, 0), (1, 1), (1, 1), (2, 0)]
        );
        assert_eq!(sent(Pattern::One, &[false; 3]), []);
    }
}
