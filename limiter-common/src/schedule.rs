//! Schedules of CPUs that meet, drawn by shuttle: another CPU may go on before each access to a shared word.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::thread_local;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::{Config, Runner};

thread_local! {
    /// A word of shuttle's own, while a scenario runs: shuttle switches where one is accessed.
    // Each schedule's, as shuttle keeps with it what the threads of one know of each other.
    static POINT: RefCell<Option<Rc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Lets another CPU of the scenario go on. Outside of a scenario nothing happens.
pub(crate) fn switch() {
    // Taken out first: the switch leaves this function in the middle.
    let point = POINT.with_borrow(Clone::clone);
    if let Some(point) = point {
        point.load(Ordering::SeqCst);
    }
}

/// Runs a scenario, which starts its CPUs by `shuttle::thread`, under twice as many schedules: as many with a few
/// switches at random places, which find rare bugs (Burckhardt et al., "A Randomized Scheduler with Probabilistic
/// Guarantees of Finding Bugs", 2010), and as many with a switch anywhere.
pub(crate) fn explore(schedules: usize, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    // Three CPUs in turn are found by five, and hardly ever by three.
    const SWITCHES: usize = 5;
    // The same schedules each time: a failure is not a matter of luck.
    const SEED: u64 = 17;
    let run = || {
        let scenario = move || {
            POINT.set(Some(Rc::new(AtomicU64::new(0))));
            scenario();
            POINT.set(None);
        };
        let few = PctScheduler::new_from_seed(SEED, SWITCHES, schedules);
        let many = RandomScheduler::new_from_seed(SEED, schedules);
        Runner::new(few, Config::default()).run(scenario.clone());
        Runner::new(many, Config::default()).run(scenario);
    };
    let outcome = catch_unwind(AssertUnwindSafe(run));
    POINT.set(None);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Whether some schedule fails the scenario, which has a bug.
pub(crate) fn finds(schedules: usize, scenario: impl Fn() + Clone + Send + Sync + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| explore(schedules, scenario))).is_err()
}
