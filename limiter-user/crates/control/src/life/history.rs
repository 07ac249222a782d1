//! Writes what went on, each minute and at the end, in no lock.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::handle::CoreHandle;
use crate::plane::sample;
use api::error::{Failure, exit};

/// How often history is written. What a crash costs of it is shown as a gap.
const PERIOD: Duration = Duration::from_mins(1);

/// When it is tried again after it could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// How often is looked whether history has been written, at the end.
const TIMEOUT: u32 = 50;

/// Writes history once. The core is free for others meanwhile. Returns whether all is well with it.
async fn write(shared: &CoreHandle) -> Result<bool, Failure> {
    let Some((mut keeper, patch)) = shared.with(|core| Ok(core.past.take())).await? else {
        return Ok(true);
    };
    let written = spawn_blocking(move || {
        let written = keeper.write(&patch);
        (keeper, written)
    });
    let failed = |_| Failure::new(exit::NEGATIVE, "history cannot be kept: an internal error");
    let (keeper, written) = written.await.map_err(failed)?;
    shared
        .with(move |core| {
            let well = written.is_ok();
            core.past.written(keeper, written);
            Ok(well)
        })
        .await
}

/// Writes history each minute, until an internal error.
pub(super) async fn keep(shared: &CoreHandle) -> Failure {
    loop {
        // A task of its own: the end of the daemon does not cut it off.
        let writer = shared.clone();
        match tokio::spawn(async move { write(&writer).await }).await {
            Ok(Ok(well)) => sleep(if well { PERIOD } else { RETRY_INTERVAL }).await,
            Ok(Err(failure)) => return failure,
            Err(error) => {
                return Failure::new(exit::NEGATIVE, format!("history cannot be kept: {error}"));
            }
        }
    }
}

/// Writes history up to now, when the daemon ends.
pub(super) async fn keep_at_end(shared: &CoreHandle) -> Result<(), Failure> {
    shared
        .with(|core| {
            let sample = sample(&*core.rules.plane)?;
            core.past.history.record(&sample);
            Ok(())
        })
        .await?;
    // What is being written comes first.
    for _ in 0..TIMEOUT {
        if shared.with(|core| Ok(!core.past.is_taken())).await? {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    write(shared).await.map(drop)
}
