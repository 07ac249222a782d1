//! What algorithms decide on the same requests, beside the exact log.

use std::collections::VecDeque;
use std::time::Instant;

use limiter_common::gcra::Ticks;

use super::settings::{Candidate, Settings};

/// Requests that are decided at a time: few enough to stay in the cache.
pub(crate) const CHUNK: usize = 4096;

/// Of so many requests one is compared by what is counted then: asking costs as much as deciding.
const SAMPLE: usize = 8;

/// What one algorithm made of some traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Requests.
    pub offered: u64,
    /// Of them, those that were admitted.
    pub admitted: u64,
    /// The most that was admitted of a source in any window.
    pub most: u64,
    /// Requests that were denied though they conform: up to then, their source had sent no more than the limit in any
    /// window, denied requests included.
    pub conforming_denied: u64,
    /// Requests that the exact log, which has seen the same traffic, decided otherwise.
    pub otherwise: u64,
    /// What all decisions took, ns.
    pub nanoseconds: f64,
    /// Sources that sent more than the limit in some window, and of which nothing was denied.
    pub missed_sources: u64,
    /// The most that one of them sent in a window beyond the limit, as a part of it.
    pub missed_excess: f64,
    /// Sources that never sent more than the limit in a window, and of which something was denied.
    pub wronged_sources: u64,
    /// The sum over some requests of the difference between what was counted and what was admitted in the last window,
    /// as a part of that.
    differences: f64,
    /// Requests in that sum.
    compared: u64,
}

impl Tally {
    /// Adds what was made of other traffic.
    pub fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.admitted += other.admitted;
        self.most = self.most.max(other.most);
        self.conforming_denied += other.conforming_denied;
        self.otherwise += other.otherwise;
        self.nanoseconds += other.nanoseconds;
        self.missed_sources += other.missed_sources;
        self.missed_excess = self.missed_excess.max(other.missed_excess);
        self.wronged_sources += other.wronged_sources;
        self.differences += other.differences;
        self.compared += other.compared;
    }

    /// The part of all requests that the exact log decided otherwise, 0 to 1.
    pub fn otherwise_part(&self) -> f64 {
        self.otherwise as f64 / self.offered.max(1) as f64
    }

    /// What a decision took, ns.
    pub fn ns(&self) -> f64 {
        self.nanoseconds / self.offered.max(1) as f64
    }

    /// The mean difference between what was counted and what was admitted in the last window, as a part of that; 0 if
    /// nothing was counted.
    pub fn mean_difference(&self) -> f64 {
        self.differences / self.compared.max(1) as f64
    }
}

/// What was sent within the last window, exactly.
#[derive(Debug, Default)]
struct Recent {
    times: VecDeque<Ticks>,
    /// The most that it ever was.
    most: u64,
}

impl Recent {
    fn count(&mut self, window: Ticks, now: Ticks) -> u64 {
        while self.times.front().is_some_and(|time| time + window <= now) {
            self.times.pop_front();
        }
        self.times.len() as u64
    }

    fn push(&mut self, window: Ticks, now: Ticks) -> u64 {
        self.times.push_back(now);
        let count = self.count(window, now);
        self.most = self.most.max(count);
        count
    }

    fn clear(&mut self) {
        self.times.clear();
        self.most = 0;
    }
}

/// What is known of the present source under one algorithm.
struct Lane<'a> {
    candidate: &'a Candidate,
    /// What a new source has room for.
    capacity: u64,
    state: Vec<u64>,
    admitted: Vec<bool>,
    /// What is left after each [`SAMPLE`]th request, if that is asked for.
    rooms: Vec<u64>,
    recent: Recent,
    has_denied: bool,
    tally: Tally,
}

/// Gives one source after the other to all algorithms.
pub struct Judge<'a> {
    limit: u64,
    window: Ticks,
    /// Whether what is counted is compared, too.
    counts: bool,
    lanes: Vec<Lane<'a>>,
    offered: Recent,
}

impl<'a> Judge<'a> {
    /// A judge of `candidates`, of which the last one is the exact log. With `counts` it compares what they count with
    /// what they admitted, which takes longer.
    pub fn new(settings: &Settings, candidates: &'a [Candidate], counts: bool) -> Self {
        let lane = |candidate: &'a Candidate| {
            let state = candidate.state();
            Lane {
                candidate,
                capacity: candidate.algorithm.room(&state, 0),
                state,
                admitted: Vec::new(),
                rooms: Vec::new(),
                recent: Recent::default(),
                has_denied: false,
                tally: Tally::default(),
            }
        };
        let lanes = candidates.iter().map(lane).collect();
        let (limit, window) = (settings.limit, settings.window);
        Self { limit, window, counts, lanes, offered: Recent::default() }
    }

    /// Judges requests of the present source, which never go back in time.
    pub fn feed(&mut self, times: &[Ticks]) {
        for chunk in times.chunks(CHUNK) {
            self.chunk(chunk);
        }
    }

    fn chunk(&mut self, times: &[Ticks]) {
        // First: it brings the times into the cache, so that no algorithm pays for that.
        let mut conforming = 0;
        for time in times {
            self.offered.push(self.window, *time);
            conforming += usize::from(self.offered.most <= self.limit);
        }
        for Lane { candidate, state, admitted, rooms, tally, .. } in &mut self.lanes {
            admitted.clear();
            rooms.clear();
            if self.counts {
                for part in times.chunks(SAMPLE) {
                    candidate.algorithm.decide_all(state, part, admitted);
                    rooms.extend(part.last().map(|now| candidate.algorithm.room(state, *now)));
                }
            } else {
                let start = Instant::now();
                candidate.algorithm.decide_all(state, times, admitted);
                tally.nanoseconds += start.elapsed().as_secs_f64() * 1e9;
            }
        }
        let Some(log) = self.lanes.last_mut() else { return };
        let exact = std::mem::take(&mut log.admitted);
        for lane in &mut self.lanes {
            let admitted = if lane.admitted.is_empty() { &exact } else { &lane.admitted };
            let mut total = 0;
            for (i, ((time, admits), exact)) in times.iter().zip(admitted).zip(&exact).enumerate() {
                lane.tally.otherwise += u64::from(admits != exact);
                if *admits {
                    total += 1;
                    lane.recent.push(self.window, *time);
                } else if i < conforming {
                    lane.tally.conforming_denied += 1;
                }
                if (i + 1) % SAMPLE == 0
                    && let Some(room) = lane.rooms.get(i / SAMPLE)
                {
                    let real = lane.recent.count(self.window, *time);
                    if real > 0 {
                        let counted = lane.capacity - room;
                        lane.tally.differences += counted.abs_diff(real) as f64 / real as f64;
                        lane.tally.compared += 1;
                    }
                }
            }
            lane.tally.offered += times.len() as u64;
            lane.tally.admitted += total;
            lane.has_denied |= total < times.len() as u64;
        }
        if let Some(log) = self.lanes.last_mut() {
            log.admitted = exact;
        }
    }

    /// What was offered within the window that ends at `now`, and for each algorithm what it counts and what it
    /// admitted in that window.
    pub(crate) fn counts(&mut self, now: Ticks) -> (u64, Vec<(u64, u64)>) {
        let window = self.window;
        let lane = |lane: &mut Lane<'_>| {
            let room = lane.candidate.algorithm.room(&lane.state, now);
            (lane.capacity - room, lane.recent.count(window, now))
        };
        (self.offered.count(window, now), self.lanes.iter_mut().map(lane).collect())
    }

    /// Ends the present source; another one follows.
    pub fn end_source(&mut self) {
        let sent = self.offered.most;
        for lane in &mut self.lanes {
            let tally = &mut lane.tally;
            tally.most = tally.most.max(lane.recent.most);
            if sent > self.limit && !lane.has_denied {
                tally.missed_sources += 1;
                let excess = sent as f64 / self.limit as f64 - 1.0;
                tally.missed_excess = tally.missed_excess.max(excess);
            }
            tally.wronged_sources += u64::from(sent <= self.limit && lane.has_denied);
            lane.state.fill(0);
            lane.recent.clear();
            lane.has_denied = false;
        }
        self.offered.clear();
    }

    /// Judges all requests of a source.
    pub fn source(&mut self, times: &[Ticks]) {
        self.feed(times);
        self.end_source();
    }

    /// What the algorithms made of all sources, in the candidates' order.
    pub fn into_tallies(self) -> Vec<Tally> {
        self.lanes.into_iter().map(|lane| lane.tally).collect()
    }
}
