//! Saves what the data plane estimates, so that it can leave the host.
//!
//! The Count-Min Sketch of the kernel forgets with each epoch, and does not count sources that have a bucket. So a save
//! waits for the end of an epoch, and adds what those sources have sent since it began: since a look at their buckets
//! just before. A packet may be counted that came between that look and the epoch; none is missing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::core::Core;
use super::handle::CoreHandle;
use super::plane::Plane;
use super::scan::Snapshot;
use api::error::{Failure, exit};
use api::requests::SketchCellsRequest;
use api::{SKETCH_RATES, SketchCells};
use dataplane::SketchCounts;
use model::digest::Digest;
use telemetry::saved_sketch::{Header, SavedSketch, key_name, shape};

/// How often an epoch is waited for. On a busy machine a task may come too late for its end.
const TRIES: u32 = 16;

/// How long until `before` the next end of an epoch that is `window` long: epochs begin with 1970.
fn until_end(window: Duration, before: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let window = window.as_nanos().max(1);
    let left = window - (now + before).as_nanos() % window;
    Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

/// What all buckets count at present.
fn look(plane: &dyn Plane) -> Snapshot {
    Snapshot::take(plane.monotonic_ns(), plane.buckets(), |visit| plane.counts(visit))
}

/// What the data plane estimates: packets of the present epoch of the sketch, distinct sources of the last full window,
/// and rates of sources with a bucket over [`SKETCH_RATES`] and these epochs.
///
/// # Errors
/// If this machine is too busy to see the end of an epoch.
pub async fn save(shared: &CoreHandle) -> Result<SavedSketch, Failure> {
    let (first, window_ms) =
        shared.with(|core| Ok((look(core.plane()), core.plane().sketch().window_ms))).await?;
    let (cost, first) = (first.at.elapsed(), Arc::new(first));
    let window = Duration::from_secs_f64(window_ms / 1e3);
    sleep(SKETCH_RATES).await;
    for attempt in 0..TRIES {
        // As late in an epoch as this machine manages: then little is counted of the one before, and nearly all of the
        // next one.
        let margin = window / 16 * (1 + attempt / 2).min(6);
        sleep(until_end(window, margin.max(2 * cost).min(window / 2))).await;
        let before = shared.with(|core| Ok(look(core.plane()))).await?;
        let looked = SystemTime::now();
        sleep(until_end(window, Duration::ZERO) + window - margin).await;
        let first = Arc::clone(&first);
        let found = shared.with(move |core| Ok(sketch(core.plane(), &first, &before, looked)));
        if let Some(found) = found.await? {
            return Ok(found);
        }
    }
    let message = format!("no epoch of the sketch was seen to its end; each takes {window:.1?}");
    Err(Failure::new(exit::NEGATIVE, message)
        .hint("save again when the machine is less busy, or start the daemon with a longer --sketch-window"))
}

/// The sketch, by a look for rates and one just before the epoch, which was over at `looked`. `None` if it is too late
/// or too early in an epoch.
fn sketch(
    plane: &dyn Plane,
    first: &Snapshot,
    before: &Snapshot,
    looked: SystemTime,
) -> Option<SavedSketch> {
    let seconds = first.at.elapsed().as_secs_f64().max(1e-3);
    let mut rates = Digest::coarse();
    let counts = plane.sketch_counts(&mut |bucket, class, counts| {
        let packets = first.since(bucket, counts).0;
        // A source has a bucket for each class that is limited: it counts once.
        if class == 0 && packets > 0 {
            rates.add(packets as f64 / seconds);
        }
        before.since(bucket, counts).0
    })?;
    let half = Duration::from_nanos(counts.window.ns() / 2);
    let is_just_before = counts.began.duration_since(looked).is_ok_and(|gap| gap <= half);
    if !is_just_before || counts.elapsed < half {
        return None;
    }
    let SketchCounts { key, shape, window, began, elapsed, cells } = counts;
    let header = Header::new(key, plane.prefixes(), shape, window, [began, began + elapsed]);
    Some(SavedSketch::new(header, cells, plane.registers()?.ranks, rates))
}

/// The cells of a source in a sketch of any host with this host's key.
///
/// # Errors
/// If there can be no sketch of that size.
pub fn sketch_cells(core: &Core, request: &SketchCellsRequest) -> Result<SketchCells, Failure> {
    let SketchCellsRequest { address, width, depth } = *request;
    let shape = shape(width, depth).ok_or_else(|| {
        let message = format!("there is no sketch of {depth} × {width} cells");
        Failure::new(exit::USAGE, message).hint("give the size that is in the header of the file")
    })?;
    let (key, cells) = core.rules.plane.sketch_cells(address, shape);
    Ok(SketchCells { key: key_name(key), cells })
}
