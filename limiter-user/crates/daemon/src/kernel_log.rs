//! Forwards what the kernel program writes to the daemon's log.

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use dataplane::KernelLog;

/// Forwards the lines of `log`, if there is one, until the daemon ends. The kernel program writes so few in
/// a second that they need no limit here.
pub(crate) fn forward(log: Option<KernelLog>) {
    let Some(log) = log else { return };
    // SAFETY: the descriptor is that of the ring buffer, which `log` owns: it stays the same and open until
    // `log` is dropped, which nobody does before its AsyncFd.
    let registered = unsafe { AsyncFd::register_with_interest(log, Interest::READABLE) };
    match registered {
        Ok(log) => {
            tracing::info!("the kernel program writes to this log");
            tokio::spawn(async move {
                if let Err(error) = watch(log).await {
                    tracing::error!(
                        "the kernel program does not write to this log any more: {error}"
                    );
                }
            });
        }
        Err(error) => tracing::warn!("the kernel program cannot write to this log: {error}"),
    }
}

async fn watch(mut log: AsyncFd<KernelLog>) -> io::Result<()> {
    loop {
        let mut ready = log.readable_mut().await?;
        // All lines that there are: only the next one makes the descriptor readable again.
        ready.get_inner_mut().forward();
        ready.clear_ready();
    }
}
