//! Leaving the cluster for good, or for long.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::link::Command;
use super::share_loop::Input;
use super::{Cluster, ended};
use api::ClusterLeft;
use api::error::{Failure, exit};

/// How long the last words may take to go out.
// The link sends them itself, and the daemon may end right after this returns.
const LAST_WORDS: Duration = Duration::from_millis(100);

impl Cluster {
    /// Hands all shares of this host over to the others, for which it waits so long, and goes. From the start
    /// on nothing passes here that is under a limit of the cluster.
    ///
    /// # Errors
    /// If not all could be handed over in time; the daemon goes on trying.
    pub async fn leave(&self, patience: Duration) -> Result<ClusterLeft, Failure> {
        let begun = Instant::now();
        // Counted at the start: hosts may come and go while it waits.
        let members = self.link.members.borrow().len();
        let left = self.order(Input::Leave).await?;
        let Ok(left) = timeout(patience, left).await else {
            return Err(self.stays(patience));
        };
        let disbanded = left.map_err(ended)?;
        self.link.order(Command::Leave);
        sleep(LAST_WORDS).await;
        Ok(ClusterLeft {
            name: self.name.clone(),
            others: members.saturating_sub(1) as u64,
            disbanded,
            seconds: begun.elapsed().as_secs_f64(),
        })
    }

    /// That this host could not go in time, and why.
    fn stays(&self, patience: Duration) -> Failure {
        let shares = self.shares.borrow();
        let rest = shares.home + shares.on_the_way;
        let seconds = patience.as_secs();
        if rest.is_none() {
            let message = format!("the other hosts cannot do without this one after {seconds} s");
            return Failure::new(exit::NEGATIVE, message).hint(
                "its part is handed over, but too few others are there to count the lost ones out. Ask again later, or run \
                 `limiter cluster forget` for hosts that are off for good",
            );
        }
        let message = format!(
            "{:.1} % of the cluster's limits could not be handed over in {seconds} s",
            100.0 * rest.part(),
        );
        Failure::new(exit::NEGATIVE, message).hint(
            "see whether other hosts are there, with `limiter status`, and ask again; if this one ends now, \
             what it has lies idle until it is back",
        )
    }
}
