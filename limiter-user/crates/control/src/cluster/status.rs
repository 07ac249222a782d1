//! What the daemon knows of its cluster, for whoever asks the core.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::link::seeds::Seed;
use super::link::{self, monotonic};
use super::partitions::LimitFacts;
use super::views::file_limits::{self, Difference};
use super::{Cluster, ShareReport};
use crate::rules::{Concern, Fleet};
use api::ClusterStatus;
use cluster::agreement::Agreement;
use cluster::config;
use cluster::escrow::LostHost;
use cluster::link::{Bootstrap, ClusterId, Others};
use cluster::membership::{Identity, Members};
use cluster::wire::{Counts, Rejected, Rejection};
use cluster::{HostId, Moment, escrow};
use model::{Limits, Share};

/// Home shares that are so much less than the whole are not worth a word.
// A thousandth: what roundings leave behind must not look like a loss.
const MIN_HOME: Share = Share::from_units(1 << 22);

/// For how long it is told that packets were not listened to.
// Long enough for somebody who looks after an alarm, short enough that a repaired host does not
// stay a warning.
const LATELY: Duration = Duration::from_secs(60);

/// The cluster as the core sees it.
pub(super) struct View {
    me: HostId,
    name: String,
    link: link::Handle,
    shares: watch::Receiver<ShareReport>,
    file_limits: watch::Receiver<Arc<Vec<Difference>>>,
    limits: watch::Sender<LimitFacts>,
}

impl View {
    /// `limits` tells the share loop what limits there are.
    pub(super) fn of(cluster: &Cluster, limits: watch::Sender<LimitFacts>) -> Self {
        let Cluster { me, name, link, shares, file_limits, .. } = cluster;
        Self {
            me: *me,
            name: name.clone(),
            link: link.clone(),
            shares: shares.clone(),
            file_limits: file_limits.clone(),
            limits,
        }
    }
}

impl Fleet for View {
    fn limits_changed(&self, limits: &[&Limits]) {
        let facts = LimitFacts::new(limits);
        // A send for nothing would wake the share thread, and make it ask the core about all
        // sources again.
        self.limits.send_if_modified(|present| {
            let is_news = facts.is_news(present);
            *present = facts;
            is_news
        });
    }

    fn set_weight(&self, weight: u32) {
        self.link.order(link::Command::Weight(weight));
    }

    fn set_seeds(&self, seeds: &[config::Seed]) {
        self.link.set_seeds(seeds.iter().map(ToString::to_string).collect());
    }

    fn report(&self, peers: usize) -> ClusterStatus {
        let (members, link) = (self.link.members.borrow(), self.link.report.borrow());
        let shares = self.shares.borrow();
        ClusterStatus {
            name: self.name.clone(),
            joined: link.cluster.is_some(),
            cluster: link.cluster.map(|id| id.to_string()),
            members: members.len() as u64,
            weight: members.get(&self.me).map_or(0, |me| me.weight),
            home: shares.home.part(),
            on_the_way: shares.on_the_way.part(),
            floor: shares.floor.part(),
            sources: shares.keys as u64,
            limited: shares.limited as u64,
            left_out: shares.left_out as u64,
            untracked: shares.untracked as u64,
            keys: shares.served as u64,
            alone: shares.alone,
            messages: shares.messages,
            withheld: shares.withheld,
            left: shares.left,
            unlimited_peers: peers as u64,
        }
    }

    fn concerns(&self, limited: bool) -> Vec<Concern> {
        let mut concerns = Vec::new();
        // Degraded says that limits are not kept as promised. A mere hint must not look like that.
        let mut note = |degraded: bool, text: String| concerns.push(Concern { text, degraded });
        let (members, link) = (self.link.members.borrow(), self.link.report.borrow());
        let shares = self.shares.borrow();
        // The thread that divides limits holds the other end.
        if self.shares.has_changed().is_err() && !shares.left {
            note(true, "cluster limit sharing has stopped: restart the daemon".into());
        }
        for (host, refused) in &link.refused {
            if let Some(kept) = members.get(host) {
                note(shares.refused && *host == self.me, copied(kept, refused));
            }
        }
        for text in namesakes(&members) {
            note(false, text);
        }
        if shares.left {
            note(limited, "this host has left the cluster: what is under its limits is dropped here; restart the \
                           daemon to come back".into());
            // All further concerns follow from having left.
            return concerns;
        }
        if let Some(problem) = &shares.problem {
            note(true, format!("limits of the cluster cannot be divided: {problem}"));
        }
        if link.cluster.is_none() {
            let dropped = if limited {
                "; until then all that is under limits of the cluster is dropped here"
            } else {
                ""
            };
            note(
                true,
                format!("this host belongs to no cluster yet: {}{dropped}", how_to_belong(&link)),
            );
        // With no cluster limit in force nothing is dropped, and a host that has just joined is
        // healthy.
        } else if shares.home.is_none() {
            note(
                limited,
                "this host has no part of the cluster's limits yet: the first packets of each source under them are \
                 dropped here, until others grant it some; it gets a part of its own when others have more than theirs"
                    .into(),
            );
        }
        // A host that is alone with everything is no concern: a cluster of one begins so.
        let lost = Share::WHOLE.without(shares.home + shares.on_the_way);
        if link.cluster.is_some() && members.len() <= 1 && lost > MIN_HOME {
            note(
                limited,
                format!(
                    "no other host of the cluster is there: this one has {:.0} % of each of its limits",
                    100.0 * shares.home.part()
                ),
            );
        }
        if shares.missing > MIN_HOME {
            let text = format!(
                "{:.1} % of each limit of the cluster belongs to no host that is there{}: a host is down, has lost its \
                 state directory, or went without `limiter cluster leave`; where no majority uses it, it lies idle for \
                 ten minutes, or until `limiter cluster forget NAME --now`",
                100.0 * shares.missing.part(),
                lost_names(&shares.lost)
            );
            note(false, text);
        }
        if let Some(left) = shares.cut_off {
            let floor = match left.as_secs() {
                0 => "it has its floor of each limit alone".to_owned(),
                left => format!(
                    "it has its floor alone of limits that a majority decides about, and in {left} s of all limits"
                ),
            };
            let text = format!(
                "this host hears less than half of the hosts of its cluster: {floor}; mend the network between them, or \
                 use `limiter cluster forget NAME --now` for those that are off"
            );
            note(true, text);
        }
        if let Some(fault) = &shares.clock {
            let text = format!(
                "{fault}: it has its floor of cluster limits alone until some seconds after that is over; look whether \
                 the time of day is being corrected (`chronyc tracking`)"
            );
            note(true, text);
        }
        // Degraded although this host works: both clusters together admit twice the limit.
        let differ = link.agreement.iter().flat_map(|mine| disagreements(mine, &link.others));
        let apart = other_clusters(&link.others).into_iter().chain(differ);
        for text in apart.chain(file_limits::told(&self.file_limits.borrow())) {
            note(true, text);
        }
        for seed in self.link.seeds.borrow().iter() {
            if let Some(error) = &seed.error {
                note(false, format!("the seed {} is not found: {error}", seed.name));
            // Only where the name is found: otherwise the line above says more.
            } else if is_silent(seed, &members, &link.others) {
                let text = "nobody answers at the seed %: no host of the cluster listens there, or its key is \
                            another one";
                note(false, text.replace('%', &seed.name));
            }
        }
        for text in strangers(&link.counts, monotonic()) {
            note(false, text);
        }
        // Not degraded: these sources keep their floor, and the limit holds.
        if shares.left_out > 0 {
            let text = format!(
                "{} sources under limits of the cluster have their floor here and no more: more sources send at once \
                 than this host has the time to divide among hosts, which are {} at present",
                shares.left_out, shares.keys
            );
            note(false, text);
        }
        for text in doubts(&shares.doubts) {
            note(true, text);
        }
        // Degraded until a restart: a copied state stays wrong until somebody repairs it.
        if shares.counters.transfers_refused > 0 {
            note(
                true,
                format!(
                    "{} home shares were refused, since they would make more than the whole: the store of some host \
                 was copied or restored",
                    shares.counters.transfers_refused
                ),
            );
        }
        concerns
    }
}

/// What lost hosts are called, in brackets.
fn lost_names(lost: &[(LostHost, Option<String>)]) -> String {
    let names: Vec<&str> = lost.iter().filter_map(|(_, name)| name.as_deref()).collect();
    if names.is_empty() { String::new() } else { format!(" (lost: {})", names.join(", ")) }
}

/// That two hosts have one ledger.
pub(super) fn copied(kept: &Identity, refused: &Identity) -> String {
    // A host that has moved is here, too, until its former run is found to be dead: it must keep its file.
    format!(
        "{} at {} has the share ledger of {} at {}: while both are there it is not listened to, and has its floor of \
         limits alone; if its state directory is a copy, stop its daemon, remove cluster.json there, and start it again",
        refused.name(),
        refused.address,
        kept.name(),
        kept.address
    )
}

/// What is to be said of hosts that have one name.
fn namesakes(members: &Members) -> impl Iterator<Item = String> {
    let mut named = BTreeMap::<&str, Vec<String>>::new();
    for member in members.values() {
        named.entry(member.name()).or_default().push(member.address.to_string());
    }
    named.into_iter().filter(|(_, at)| at.len() > 1).map(|(name, at)| {
        format!(
            "{} hosts are called {name}, at {}: give each its own name",
            at.len(),
            at.join(", ")
        )
    })
}

/// What is to be said where the parts of all hosts do not add up.
fn doubts(doubts: &escrow::Doubts) -> Vec<String> {
    let mut texts = Vec::new();
    let percent = |share: Share| 100.0 * share.part();
    if let Some(homes) = doubts.homes {
        texts.push(format!(
            "hosts have {:.0} % of each of the cluster's limits together, and each uses so much less: the state \
             directory of one was copied or restored; `limiter peers` shows what each has, run `limiter cluster \
             leave` on the copy",
            percent(homes)
        ));
    }
    if !doubts.lost.is_none() {
        texts.push(format!(
            "{:.1} % of each of the cluster's limits that lost hosts had is with other hosts now, and is not used \
             twice: a lost host has handed it over, or its state directory was copied; if it has left, restart this \
             daemon",
            percent(doubts.lost)
        ));
    }
    if !doubts.given_up.is_none() {
        texts.push(format!(
            "the state directory of this host went back to an earlier copy: it has given up {:.1} % of each of the \
             cluster's limits, which it had handed to others since; restart the daemon once that is understood",
            percent(doubts.given_up)
        ));
    }
    texts
}

/// How a host that belongs to no cluster comes to belong to one.
fn how_to_belong(link: &link::Report) -> String {
    let bootstrap = link.bootstrap.filter(|bootstrap| bootstrap.expect > 0);
    let Some(Bootstrap { expect, .. }) = bootstrap else {
        return "run `limiter cluster init` on one host, or set bootstrap_expect on all, or wait for a member to answer"
            .into();
    };
    // This host waits, too.
    let seen = 1 + link.others.values().filter(|other| other.bootstrap.expect > 0).count();
    format!(
        "it sees {seen} of the {expect} hosts that are to found one together (bootstrap_expect), and no member; if the \
         others do not come, run `limiter cluster init` on one host"
    )
}

/// What is to be said of other clusters whose hosts have the same key.
fn other_clusters(others: &Others) -> Vec<String> {
    // Sorted, so that the text is the same at each call and an alert does not fire anew.
    let mut clusters = BTreeMap::<ClusterId, Vec<&Identity>>::new();
    for other in others.values() {
        if let Some(cluster) = other.cluster {
            clusters.entry(cluster).or_default().push(&other.identity);
        }
    }
    let told = clusters.iter().map(|(cluster, hosts)| {
        let hosts = hosts.iter().map(|host| format!("{} at {}", host.name(), host.address));
        format!(
            "there is another cluster with the same key, {cluster}: {}. Both let the whole of each limit through. End one: \
             run `limiter cluster leave` on each of its hosts, then restart their daemons with a host of the other as seed",
            hosts.collect::<Vec<_>>().join(", ")
        )
    });
    told.collect()
}

/// What is to be said of hosts that are refused because they are set up otherwise.
fn disagreements(mine: &Agreement, others: &Others) -> Vec<String> {
    let differ = others.values().filter(|other| other.agreement != *mine);
    let told = differ.map(|other| {
        let differences = mine.differences(&other.agreement);
        let differences = differences
            .iter()
            .map(|(what, here, there)| format!("{what} is {here} here and {there} there"));
        format!(
            "{} at {} is refused, and shares no limit with this host: {}. All hosts of a cluster need the same",
            other.identity.name(),
            other.identity.address,
            differences.collect::<Vec<_>>().join(", ")
        )
    });
    told.collect()
}

/// Whether a seed was found, and no host with the key is there.
fn is_silent(seed: &Seed, members: &Members, others: &Others) -> bool {
    let there = |at: &SocketAddr| {
        // A host with the key that refuses this one has answered, too: another line tells why.
        others.contains_key(at) || members.values().any(|member| member.address == *at)
    };
    !seed.addresses.is_empty() && !seed.addresses.iter().any(there)
}

/// Of hosts that would be members if they were set up alike. What else is refused may be anybody's.
const FROM_STRANGERS: [Rejection; 2] = [Rejection::Key, Rejection::Protocol];

/// What is to be said of hosts that are not listened to, and have sent something lately.
fn strangers(counts: &Counts, now: Moment) -> impl Iterator<Item = String> {
    FROM_STRANGERS.into_iter().filter_map(move |why| {
        let Rejected { packets, latest } = counts.rejected(why);
        // The count alone never falls, so it would warn for ever.
        let (at, from) = latest.filter(|(at, _)| now.since(*at) < LATELY)?;
        let ago = now.since(at).as_secs();
        Some(format!("rejected {packets} packets, the latest from {from} {ago} s ago: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::link::Other;
    use cluster::wire::Epoch;

    #[test]
    fn hosts_that_are_set_up_otherwise_are_told_of_for_a_while() {
        let (mut counts, at) = (Counts::default(), Moment(1_000_000_000));
        counts.reject(Rejection::Key, at, ([192, 0, 2, 1], 7700).into());
        counts.reject(Rejection::Foreign, at, ([192, 0, 2, 2], 53).into());
        let told = |after| strangers(&counts, at.after(after)).collect::<Vec<_>>();
        let expected = "rejected 1 packets, the latest from 192.0.2.1:7700 3 s ago: unknown key";
        assert_eq!(told(Duration::from_secs(3)), [expected]);
        assert!(told(LATELY).is_empty());
    }

    #[test]
    fn what_does_not_add_up_is_told() {
        assert!(doubts(&escrow::Doubts::default()).is_empty());
        let homes = Some(Share::from_part(5.0 / 3.0));
        let all = escrow::Doubts {
            homes,
            lost: Share::from_part(0.25),
            given_up: Share::from_part(2.0 / 3.0),
        };
        let texts = doubts(&all);
        for (text, part) in
            texts.iter().zip(["hosts have 167 %", "25.0 % of each", "given up 66.7 %"])
        {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(texts.len(), 3);
    }

    #[test]
    fn a_seed_is_silent_where_it_was_found_and_no_member_is() {
        let epoch = Epoch::starting(None, 1, 2);
        let member =
            Identity::new(HostId(1), "a", "default", ([192, 0, 2, 1], 7700).into(), epoch, 100);
        let members = Members::from([(member.host(), member)]);
        let mut seed = Seed::new("name:7700");
        let mut others = Others::new();
        assert!(!is_silent(&seed, &members, &others));
        seed.addresses = vec![([192, 0, 2, 9], 7700).into()];
        assert!(is_silent(&seed, &members, &others));
        others.insert(seed.addresses[0], other("b", 9, 4, None));
        assert!(!is_silent(&seed, &members, &others));
        others.clear();
        seed.addresses.push(([192, 0, 2, 1], 7700).into());
        assert!(!is_silent(&seed, &members, &others));
    }

    #[test]
    fn hosts_of_one_name_or_one_ledger_are_told_apart() {
        let epoch = Epoch::starting(None, 1, 2);
        let member = |host: u64, name: &str| {
            let at = ([192, 0, 2, host as u8], 7700).into();
            (HostId(host), Identity::new(HostId(host), name, "default", at, epoch, 100))
        };
        let members = Members::from([member(1, "a"), member(2, "b"), member(3, "a")]);
        let told: Vec<_> = namesakes(&members).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("called a, at 192.0.2.1:7700, 192.0.2.3:7700"), "{told:?}");
        let told = copied(&members[&HostId(1)], &members[&HostId(2)]);
        assert!(told.contains("b at 192.0.2.2:7700 has the share ledger of a at 192.0.2.1:7700"));
    }

    fn other(name: &str, last: u8, expect: u32, cluster: Option<u64>) -> Other {
        let at = ([192, 0, 2, last], 7700).into();
        Other {
            identity: Identity::new(
                HostId(last.into()),
                name,
                "default",
                at,
                Epoch::starting(None, 1, 2),
                100,
            ),
            cluster: cluster.map(ClusterId),
            bootstrap: Bootstrap { expect, proposal: ClusterId(1), vote: None },
            agreement: Agreement::new((32, 56)),
            heard: Moment(0),
        }
    }

    #[test]
    fn other_clusters_are_named_with_their_hosts() {
        let hosts = [other("b", 2, 0, Some(7)), other("c", 3, 0, Some(7)), other("d", 4, 3, None)];
        let others: Others =
            hosts.into_iter().map(|other| (other.identity.address, other)).collect();
        let told = other_clusters(&others);
        assert!(told.len() == 1 && told[0].contains("0000000000000007"), "{told:?}");
        assert!(told[0].contains("b at 192.0.2.2:7700, c at 192.0.2.3:7700"), "{told:?}");
        let refused = disagreements(&Agreement::new((32, 64)), &others);
        assert_eq!(refused.len(), 3);
        assert!(refused[0].contains("ipv6_prefix is /64 here and /56 there"), "{refused:?}");
        let mut report = link::Report { others, ..link::Report::default() };
        assert!(how_to_belong(&report).contains("limiter cluster init"));
        report.bootstrap = Some(Bootstrap { expect: 3, proposal: ClusterId(2), vote: None });
        assert!(how_to_belong(&report).contains("2 of the 3 hosts"), "{}", how_to_belong(&report));
    }
}
