//! Tells the data plane where frames of the cluster come from, so that it does not limit them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use super::link::seeds::Seed;
use crate::handle::CoreHandle;
use cluster::membership::Members;

/// Tells it whenever a member comes or a seed is found, until the link has ended.
pub(super) async fn serve(
    mut members: watch::Receiver<Arc<Members>>,
    mut seeds: watch::Receiver<Vec<Seed>>,
    me: SocketAddr,
    shared: CoreHandle,
) {
    loop {
        // Without it a limit on all sources would drop frames of the cluster under a flood.
        let peers = addresses(&members.borrow_and_update(), &seeds.borrow_and_update(), me);
        let told = shared.with(move |core| core.rules.set_peers(&peers));
        if let Err(failure) = told.await {
            // The loop goes on: the next change brings the whole list again.
            tracing::warn!("{failure}");
        }
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            changed = seeds.changed() => if changed.is_err() { return },
        }
    }
}

/// Where all but this host send from: the addresses of members, and of seeds, who may be members soon.
fn addresses(members: &Members, seeds: &[Seed], me: SocketAddr) -> BTreeSet<IpAddr> {
    let members = members.values().map(|member| member.address);
    let seeds = seeds.iter().flat_map(|seed| seed.addresses.iter().copied());
    // By address and port: several hosts may share one address.
    members.chain(seeds).filter(|address| *address != me).map(|address| address.ip()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::HostId;
    use cluster::membership::Identity;
    use cluster::wire::Epoch;

    #[test]
    fn members_and_seeds_are_peers_and_this_host_is_not() {
        let epoch = Epoch::starting(None, 1, 2);
        let member = |last: u8| {
            let name = format!("host-{last}");
            let member = Identity::new(
                HostId(last.into()),
                &name,
                "default",
                ([192, 0, 2, last], 7700).into(),
                epoch,
                100,
            );
            (member.host(), member)
        };
        let members = Members::from([member(1), member(2)]);
        let mut seed = Seed::new("name:7700");
        seed.addresses = vec![([192, 0, 2, 2], 7700).into(), ([192, 0, 2, 3], 7700).into()];
        let peers = addresses(&members, &[seed], ([192, 0, 2, 1], 7700).into());
        let expected = [2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        assert_eq!(peers, BTreeSet::from(expected));
    }
}
