//! The experiment that Cloudflare published in 2017: many sources, of which few come near their limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use limiter_common::gcra::{Ticks, ticks};

use super::judge::{CHUNK, Judge, Tally};
use super::settings::{Candidate, Settings};
use super::traffic::{gap, rng};

/// How many requests there were.
pub const REQUESTS: u64 = 400_000_000;
/// How many sources sent them.
pub const SOURCES: u64 = 270_000;
/// The time in which ours send them: a day. It is not published.
const SPAN: Ticks = ticks(86_400 * 1_000_000_000);
/// How often progress is told.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The published figures, of two weighted windows ("How we built rate limiting capable of scaling to millions of
/// domains").
pub struct Published {
    /// The part of all requests that was wrongly allowed or limited.
    pub otherwise: f64,
    /// The mean difference of rates.
    pub difference: f64,
    /// Sources above the threshold that were allowed.
    pub missed_sources: u64,
    /// The most that one of them was above it, less than.
    pub missed_excess: f64,
    /// Sources below the threshold that were limited.
    pub wronged_sources: u64,
}

/// See [`Published`].
pub const PUBLISHED: Published = Published {
    otherwise: 0.000_03,
    difference: 0.06,
    missed_sources: 3,
    missed_excess: 0.15,
    wronged_sources: 0,
};

/// Has all candidates judge about `requests` of so many sources; the n-th sends 1/n of what the first one does, at
/// random times within a day. Tells from time to time which part is done.
///
/// # Panics
/// If a thread that judges does.
pub fn run(
    settings: &Settings,
    candidates: &[Candidate],
    (requests, sources): (u64, u64),
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Vec<Tally> {
    let harmonic: f64 = (1..=sources).map(|n| 1.0 / n as f64).sum();
    // Sources know nothing of each other, so each is judged by one thread, the largest first.
    let (next, done) = (AtomicU64::new(1), AtomicU64::new(0));
    let work = || {
        let mut judge = Judge::new(settings, candidates, true);
        let mut times = Vec::with_capacity(CHUNK);
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n > sources {
                return judge.into_tallies();
            }
            let mean = SPAN as f64 * harmonic * n as f64 / requests as f64;
            let mut rng = rng(seed, n);
            let mut now = gap(mean, &mut rng);
            while now < SPAN as f64 {
                times.push(now as Ticks);
                now += gap(mean, &mut rng);
                if times.len() == CHUNK || now >= SPAN as f64 {
                    judge.feed(&times);
                    done.fetch_add(times.len() as u64, Ordering::Relaxed);
                    times.clear();
                }
            }
            judge.end_source();
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(POLL_INTERVAL);
            progress(done.load(Ordering::Relaxed) as f64 / requests as f64);
        }
        let mut all = vec![Tally::default(); candidates.len()];
        for worker in workers {
            let tallies = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.iter_mut().zip(&tallies).for_each(|(all, tally)| all.add(tally));
        }
        all
    })
}
