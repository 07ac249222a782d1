//! Forgetting a host that is gone for good.

use std::time::Duration;

use tokio::time::timeout;

use super::share_loop::Input;
use super::{Cluster, ended};
use api::ClusterForgotten;
use api::error::{Failure, exit};
use cluster::escrow::{Forget, LostHost};

/// How long the answer waits for the others to count shares anew: they do so within some seconds, or not yet.
const TIMEOUT: Duration = Duration::from_secs(15);

impl Cluster {
    /// Gives the others what the lost host of this name had: when its home lease has ended, or without waiting for that
    /// where its machine is off. With `dry_run` it only tells what that would be.
    ///
    /// # Errors
    /// If no lost host of this cluster is called so.
    pub async fn forget(
        &self,
        name: &str,
        how: Forget,
        dry_run: bool,
    ) -> Result<ClusterForgotten, Failure> {
        let (lost, era) = {
            let shares = self.shares.borrow();
            (self.find_lost(name, &shares.lost)?, shares.era)
        };
        let mut done = false;
        if !dry_run {
            let told = self.order(|done| Input::Forget(lost.host, how, done)).await?;
            told.await.map_err(ended)?;
            let mut shares = self.shares.clone();
            done = timeout(TIMEOUT, shares.wait_for(|now| now.era > era)).await.is_ok();
        }
        Ok(ClusterForgotten {
            name: name.to_owned(),
            share: lost.home.part(),
            lease_seconds: lost.home_lease.map(|lease| lease.as_secs_f64()),
            done,
        })
    }

    fn find_lost(
        &self,
        name: &str,
        lost: &[(LostHost, Option<String>)],
    ) -> Result<LostHost, Failure> {
        if let Some((lost, _)) = lost.iter().find(|(_, it)| it.as_deref() == Some(name)) {
            return Ok(*lost);
        }
        let is_there = self.link.members.borrow().values().any(|member| member.name() == name);
        if is_there {
            return Err(Failure::new(exit::NEGATIVE, format!("{name} is there")).hint(format!(
                "to take it out of the cluster, `limiter cluster leave` on {name}"
            )));
        }
        let names: Vec<&str> = lost.iter().filter_map(|(_, name)| name.as_deref()).collect();
        let hint = if names.is_empty() {
            "this host knows of no lost host: ask one that has run for longer".to_owned()
        } else {
            format!("lost are {}", names.join(", "))
        };
        Err(Failure::new(exit::NEGATIVE, format!("no lost host is called {name}")).hint(hint))
    }
}
