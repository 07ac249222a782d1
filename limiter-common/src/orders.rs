//! Every order in which threads meet, as memory allows: what `cargo xtask schedules` runs.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::println;
use std::sync::Arc;
use std::time::Instant;

/// How often a thread may be interrupted in one order.
// Without a bound a promotion alone takes hours. Two find all bugs that are planted.
const INTERRUPTIONS: usize = 2;

/// Goes through all orders of a scenario; prints how many there are.
pub fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let (orders, began) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let count = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(INTERRUPTIONS);
    builder.max_branches = 100_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    println!("{name}: {} orders in {:.1?}", orders.load(Ordering::Relaxed), began.elapsed());
}
