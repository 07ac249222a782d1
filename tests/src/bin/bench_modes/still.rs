//! How long the machine stood still, and how much of its time a hypervisor took away: what is behind a figure that no
//! program on this machine could have made better.

use std::{
    fmt, fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ::tests::sender::pin;
use serde::Serialize;

use crate::sample::now;

/// How often each CPU is looked at.
const TICK: Duration = Duration::from_millis(5);

/// What a run had to do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Still {
    /// The longest time in which a CPU did not even run what goes before everything else, ms.
    pub(crate) still_ms: f64,
    /// The part of all CPUs' time that the hypervisor gave to others, 0 to 1.
    pub(crate) stolen: f64,
}

impl fmt::Display for Still {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { still_ms, stolen } = self;
        write!(f, "a CPU stood still for {still_ms:.0} ms, {:.1} % stolen", 100.0 * stolen)
    }
}

/// A thread on each CPU that goes before everything else.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
    before: Ticks,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let watch = |cpu| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || watch(cpu, &stop))
        };
        Self { threads: (0..cpus).map(watch).collect(), stop, before: Ticks::read() }
    }

    pub(crate) fn stop(self) -> Still {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.threads.into_iter().map(|thread| thread.join().expect("it only sleeps"));
        let still_ms = late.max().unwrap_or(0) as f64 / 1e6;
        Still { still_ms, stolen: Ticks::read().stolen_since(self.before) }
    }
}

/// Keeps the calling thread on a CPU, on which nothing goes before it.
fn take(cpu: usize) {
    pin(Some(cpu));
    // SAFETY: a scheduling parameter is one number, and the call only reads it.
    let set = unsafe {
        let highest = libc::sched_get_priority_max(libc::SCHED_FIFO);
        let parameter = libc::sched_param { sched_priority: highest };
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter)
    };
    assert!(set == 0, "no real-time priority: {}", io::Error::last_os_error());
}

/// By how much the latest of many sleeps on a CPU ended too late, ns.
fn watch(cpu: usize, stop: &AtomicBool) -> u64 {
    take(cpu);
    let mut latest = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = now() + TICK.as_nanos() as u64;
        thread::sleep(TICK);
        latest = latest.max(now().saturating_sub(due));
    }
    latest
}

/// Ticks of all CPUs since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Of the first line of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal. What follows
    /// is counted in the first two also.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).map(|it| it.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.take(8).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or(0) }
    }

    fn stolen_since(self, before: Self) -> f64 {
        let [stolen, all] = [self.stolen - before.stolen, self.all - before.all];
        stolen as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_away_is_a_part_of_all_time() {
        let before = Ticks::parse("cpu  10 1 5 100 2 0 2 80 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
        assert_eq!(before, Ticks { all: 200, stolen: 80 });
        let after = Ticks::parse("cpu  60 1 5 150 2 0 2 105 57 7\n");
        assert_eq!(after.stolen_since(before), 0.2);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(Ticks::parse(""), Ticks::default());
    }

    #[test]
    fn a_cpu_that_is_busy_with_what_nothing_goes_before_stands_still() {
        if !::tests::is_root() {
            println!("skipped: real-time priority needs root");
            return;
        }
        const BUSY: Duration = Duration::from_millis(80);
        let watch = Watch::start();
        thread::sleep(2 * TICK);
        let hog = thread::spawn(|| {
            take(0);
            let end = now() + BUSY.as_nanos() as u64;
            while now() < end {}
        });
        hog.join().expect("it only counts");
        let Still { still_ms, stolen } = watch.stop();
        assert!(still_ms >= (BUSY - TICK).as_secs_f64() * 1e3, "{still_ms}");
        assert!((0.0..=1.0).contains(&stolen), "{stolen}");
    }
}
