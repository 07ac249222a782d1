//! Who is in the cluster, and how they do.

use super::super::Cluster;
use super::super::link::monotonic;
use super::distinct::distinct_until;
use super::round::{Round, TIMEOUT};
use api::error::Failure;
use api::{
    ClockReport, OtherCluster, OverageReport, PeerDetails, PeerReport, PeerState, PeersReport,
    RefusedReport, RegionReport,
};
use cluster::link::Others;
use cluster::membership::Identity;
use cluster::queries::{Answer, Host, Question, lag};
use cluster::wire::Rejection;

/// The hosts, and how they do.
pub async fn peers(cluster: &Cluster) -> Result<PeersReport, Failure> {
    let until = monotonic().after(TIMEOUT);
    let (round, distinct) =
        // Both at once, so that a silent host costs one second and not two.
        tokio::join!(Round::of(cluster, Question::Host, until), distinct_until(cluster, until));
    let (mut round, distinct) = (round?, distinct?);
    let hosts = round.take(|answer| match answer {
        Answer::Host(host) => Some(host),
        _ => None,
    });
    let link = cluster.link.report.borrow().clone();
    // Both have to be the same: limits set at run time, and those of the files.
    let limits_of = |host: &Host| (host.limits, host.file_limits);
    let own_limits = hosts.get(&cluster.me).map(|host| limits_of(host));
    let mut peers = Vec::new();
    for (id, member) in round.members.iter() {
        let host = hosts.get(id);
        let state = match host {
            _ if *id == cluster.me => PeerState::This,
            // Suspicion goes before an answer: the answer may be older.
            _ if link.suspects.contains(id) => PeerState::Suspect,
            None => PeerState::Silent,
            Some(_) => PeerState::Alive,
        };
        let details = host.map(|host| PeerDetails {
            version: host.version.clone(),
            protocol: host.protocol,
            abi: host.abi,
            uptime_seconds: host.uptime_s,
            home: host.home,
            floor: host.floor,
            keys: host.keys,
            limited: host.limited,
            left_out: host.left_out,
            grants_held: host.grants[0],
            grants_given: host.grants[1],
            loans_borrowed: host.loans[0],
            loans_lent: host.loans[1],
            limits: format!("{:016x}", host.limits),
            limits_same: Some(limits_of(host)) == own_limits,
            members: host.members,
            received: host.received,
            sent: host.sent,
            lost: host.lost,
            refused: host.rejected.iter().map(refused).collect(),
            lag_ms: lag::read(&host.lag),
        });
        // An answer that could not be read says nothing of the host's clock, either.
        let timing = round.timing.get(id).filter(|_| details.is_some());
        let clock = timing.map(|timing| ClockReport {
            ahead_ms: timing.ahead_ns as f64 / 1e6,
            // Half the round trip: the answer may have been made at either end of it.
            error_ms: timing.round_trip.as_secs_f64() * 500.0,
            round_trip_ms: timing.round_trip.as_secs_f64() * 1e3,
        });
        peers.push(PeerReport { details, clock, ..of_host(member, state) });
    }
    let now = monotonic();
    // A host that crashed is what an operator looks for here, so it stays listed for a day.
    peers.extend(cluster.views.noticed(|noticed| {
        let gone = noticed.gone.iter();
        gone.map(|gone| PeerReport {
            gone_seconds: Some(now.since(gone.since).as_secs_f64()),
            ..of_host(&gone.identity, PeerState::Gone)
        })
        .collect::<Vec<_>>()
    }));
    peers.sort_by(|one, other| (&one.host, one.address).cmp(&(&other.host, other.address)));
    let details = || peers.iter().filter_map(|peer| peer.details.as_ref());
    let warnings = cluster.shared.with(|core| {
        let limited = core.rules.in_force().in_cluster();
        let concerns = core.rules.cluster.as_ref().map(|view| view.concerns(limited));
        Ok(concerns.into_iter().flatten().map(|concern| concern.text).collect::<Vec<_>>())
    });
    // From the core, which has them for `status`, so that both commands say the same.
    let mut warnings = warnings.await?;
    // What this host leaves out is among its concerns.
    let others = peers.iter().filter(|peer| peer.state != PeerState::This);
    warnings.extend(others.filter_map(PeerReport::left_out));
    warnings.extend(cluster.overage.borrow().iter().filter_map(OverageReport::warning));
    Ok(PeersReport {
        warnings,
        cluster: link.cluster.map(|id| id.to_string()),
        other_clusters: other_clusters(&link.others),
        unanswered: round.unanswered(),
        home: details().map(|details| details.home).sum(),
        limits_same: details().all(|details| details.limits_same),
        lag_ms: lag::merged(hosts.values().map(|host| host.lag.as_slice())),
        overage: cluster.overage.borrow().to_vec(),
        distinct,
        regions: RegionReport::from_peers(&peers),
        peers,
    })
}

/// What every member knows of a host, without its own answer.
fn of_host(host: &Identity, state: PeerState) -> PeerReport {
    PeerReport {
        host: host.name().into(),
        id: format!("{:016x}", host.host().0),
        address: host.address,
        region: host.region().into(),
        weight: host.weight,
        state,
        gone_seconds: None,
        details: None,
        clock: None,
    }
}

fn other_clusters(others: &Others) -> Vec<OtherCluster> {
    let told = others.values().filter_map(|other| {
        let (cluster, host) = (other.cluster?.to_string(), other.identity.name().into());
        Some(OtherCluster { cluster, host, address: other.identity.address })
    });
    told.collect()
}

fn refused((at, packets): &(u8, u64)) -> RefusedReport {
    // A later version may have more reasons. Its counts are shown under a common name.
    let reason = Rejection::ALL.get(usize::from(*at));
    RefusedReport {
        reason: reason.map_or("unknown", |reason| reason.name()).into(),
        meaning: reason.map_or("for a reason that this version does not know".into(), |reason| {
            reason.to_string()
        }),
        packets: *packets,
    }
}
