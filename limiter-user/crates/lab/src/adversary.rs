//! A search for the traffic of which an algorithm admits most in a window.
//!
//! It knows nothing of the algorithm, but can ask it: hill climbing from random beginnings, where a step changes one
//! thing of the traffic, and stays if no less is admitted by it.

use limiter_common::gcra::Ticks;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::settings::{Candidate, Settings};
use super::traffic::{evenly, rng};

/// Beginnings, at most.
const STARTS: u64 = 8;
/// The part of the bound at which no other beginning is tried.
const ENOUGH: f64 = 0.99;
/// Steps from each, fewer where traffic has many moments.
const STEPS: std::ops::RangeInclusive<u64> = 1000..=4000;
/// Moments that all steps from one beginning ask for, about.
const MOMENTS: u64 = 1_000_000;
/// A train arrives at as many moments at least, if it has as many requests.
const MIN_MOMENTS: u64 = 32;
/// The most trains of a traffic.
const TRAINS: usize = 6;
/// The windows in which they begin.
const WINDOWS: u64 = 3;

/// Requests, evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// When the first one comes.
    pub start: Ticks,
    /// The time that they are spread over, less than a window; all at once if it is 0.
    pub length: Ticks,
    /// How many there are.
    pub amount: u64,
}

/// The worst traffic that was found.
#[derive(Clone, Debug)]
pub struct Attack {
    /// In the order of their starts.
    pub trains: Vec<Train>,
    /// What is admitted of them in one window.
    pub most: u64,
    /// The time of each request.
    pub times: Vec<Ticks>,
}

struct Search<'a> {
    candidate: &'a Candidate,
    settings: &'a Settings,
    /// The most moments at which a train arrives.
    moments: u64,
    rng: SmallRng,
    /// Kept between questions, as there are many.
    state: Vec<u64>,
    arrivals: Vec<(Ticks, u64)>,
}

/// Searches with a seed for the traffic of which `candidate` admits most in a window.
pub fn search(settings: &Settings, candidate: &Candidate, seed: u64) -> Attack {
    // What a bucket earns in a window has to be fetched before it overflows.
    let moments = (2 * settings.limit / settings.burst).max(MIN_MOMENTS);
    let mut search = Search {
        candidate,
        settings,
        moments,
        rng: rng(seed, 0),
        state: candidate.state(),
        arrivals: Vec::new(),
    };
    let steps = (MOMENTS / moments).clamp(*STEPS.start(), *STEPS.end());
    let (mut best, mut most) = (Vec::new(), 0);
    for start in 0..STARTS {
        search.rng = rng(seed, start);
        let (found, admitted) = search.climb(steps);
        if admitted > most {
            (best, most) = (found, admitted);
        }
        if most as f64 >= ENOUGH * candidate.bound() as f64 {
            break;
        }
    }
    search.prune(&mut best, most);
    best.sort_by_key(|train| train.start);
    let mut times: Vec<_> = best.iter().flat_map(|train| search.moments(train)).collect();
    times.sort_unstable();
    let times = times.iter().flat_map(|(time, n)| std::iter::repeat_n(*time, *n as usize));
    Attack { trains: best, most, times: times.collect() }
}

impl Search<'_> {
    /// When requests of a train come, and how many at a time.
    fn moments(&self, train: &Train) -> impl Iterator<Item = (Ticks, u64)> + use<> {
        let n = if train.length == 0 { 1 } else { train.amount.min(self.moments) };
        let amount = train.amount;
        let part = move |i: u64| amount * (i + 1) / n - amount * i / n;
        evenly(train.start, train.start + train.length, n)
            .enumerate()
            .map(move |(i, time)| (time, part(i as u64)))
    }

    /// The most that is admitted in a window.
    fn most(&mut self, trains: &[Train]) -> u64 {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.clear();
        arrivals.extend(trains.iter().flat_map(|train| self.moments(train)));
        // Stable, as that is fast where trains follow each other.
        arrivals.sort_by_key(|it| it.0);
        self.state.fill(0);
        let (algorithm, window) = (&self.candidate.algorithm, self.settings.window);
        let (mut first, mut within, mut most) = (0, 0, 0);
        for i in 0..arrivals.len() {
            let (now, amount) = arrivals[i];
            let admitted = amount.min(algorithm.room(&self.state, now));
            algorithm.charge(&mut self.state, now, admitted);
            arrivals[i].1 = admitted;
            within += admitted;
            while arrivals[first].0 + window <= now {
                within -= arrivals[first].1;
                first += 1;
            }
            most = most.max(within);
        }
        self.arrivals = arrivals;
        most
    }

    fn train(&mut self) -> Train {
        let window = self.settings.window;
        let start = window + self.rng.random_range(0..WINDOWS * window);
        let length = if self.rng.random() { 0 } else { self.time() };
        Train { start, length, amount: self.amount() }
    }

    /// A time below a window; short ones are as likely as long ones.
    fn time(&mut self) -> Ticks {
        let bits = self.rng.random_range(0.0..(self.settings.window as f64).log2());
        bits.exp2() as Ticks
    }

    fn amount(&mut self) -> u64 {
        self.rng.random_range(1..=self.candidate.bound())
    }

    fn climb(&mut self, steps: u64) -> (Vec<Train>, u64) {
        let mut trains: Vec<_> = (0..self.rng.random_range(1..=3)).map(|_| self.train()).collect();
        let mut most = self.most(&trains);
        for _ in 0..steps {
            let mut next = trains.clone();
            self.change(&mut next);
            let admitted = self.most(&next);
            // Those that are as good, too: a plateau is crossed by them.
            if admitted >= most {
                (trains, most) = (next, admitted);
            }
            if most == self.candidate.bound() {
                break;
            }
        }
        (trains, most)
    }

    /// Changes one thing.
    fn change(&mut self, trains: &mut Vec<Train>) {
        let i = self.rng.random_range(0..trains.len());
        let (time, is_later) = (self.time(), self.rng.random());
        let window = self.settings.window;
        let last = (1 + WINDOWS) * window;
        match (self.rng.random_range(0..7), trains.len()) {
            (5, n) if n < TRAINS => trains.push(self.train()),
            (6, 2..) => _ = trains.swap_remove(i),
            (4, _) => trains[i].amount = self.amount(),
            (what, _) => {
                let train = &mut trains[i];
                match what {
                    0..=2 if is_later => train.start = (train.start + time).min(last),
                    // Not before the clock's second window, so that there is one before it.
                    0..=2 => train.start = train.start.saturating_sub(time).max(window),
                    3 if is_later => train.length = (train.length + time).min(window - 1),
                    3 => train.length = train.length.saturating_sub(time),
                    _ => train.length = 0,
                }
            }
        }
    }

    /// Leaves out what does not matter.
    fn prune(&mut self, trains: &mut Vec<Train>, most: u64) {
        for i in (0..trains.len()).rev() {
            let train = trains.remove(i);
            if self.most(trains) < most {
                trains.insert(i, train);
            }
        }
        for i in 0..trains.len() {
            let (mut least, mut enough) = (0, trains[i].amount);
            while least + 1 < enough {
                trains[i].amount = u64::midpoint(least, enough);
                if self.most(trains) < most {
                    least = trains[i].amount;
                } else {
                    enough = trains[i].amount;
                }
            }
            trains[i].amount = enough;
        }
    }
}
