//! What all hosts know together: a question to each, this one included, and their answers in one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use limiter_common::hll::{Ranks, WINDOW_SHIFT};

use super::super::Cluster;
use super::answer::answer;
use crate::cluster::link::task::monotonic;
use crate::cluster::membership::Members;
use crate::cluster::views::{
    Answer, Answered, Candidates, Counted, Distinct, Known, MOST_PLACES, Place, Question, distinct,
    groups, lag, top,
};
use crate::cluster::wire::Rejection;
use crate::cluster::{HostId, Moment};
use crate::dataplane::SourceState;
use crate::error::{Failure, exit};
use crate::observe;
use crate::report::{
    ClockReport, ClusterDistinctReport, ClusterSourceReport, ClusterTopEntry, ClusterTopReport,
    DistinctGroup, DistinctHost, HostSource, OverageReport, PeerDetails, PeerReport, PeerState,
    PeersReport, RefusedReport, RegionReport, Sort, SourceSums, TopEntry, Totals, Unanswered,
    moment,
};

/// How long hosts have for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long of that for the first question, where there are several: a host may look twice, a fifth of a
/// second apart.
pub(super) const FIRST: Duration = Duration::from_millis(600);

/// What hosts have answered.
pub(super) struct Round {
    members: Arc<Members>,
    answers: BTreeMap<HostId, Answer>,
    /// How long their packets took, and what their clocks said.
    timing: BTreeMap<HostId, Answered>,
    /// Who did not answer, and what they said instead.
    pub(super) unanswered: BTreeMap<HostId, String>,
}

impl Round {
    /// Asks all members.
    pub(super) async fn of(
        cluster: &Cluster,
        question: Question,
        until: Moment,
    ) -> Result<Self, Failure> {
        let members = Arc::clone(&cluster.link.members.borrow());
        let (own, outcome) =
            tokio::join!(answer(cluster, question.clone()), cluster.views.ask(question, until));
        let outcome = outcome.ok_or_else(|| {
            Failure::new(exit::NEGATIVE, "too many questions to the cluster are open")
                .hint("ask again in a second")
        })?;
        let silent = outcome.silent.into_iter().map(|host| (host, "it does not answer".to_owned()));
        let mut round = Self {
            members,
            answers: BTreeMap::new(),
            timing: BTreeMap::new(),
            unanswered: silent.collect(),
        };
        round.put(cluster.me, own);
        for (host, mut answered) in outcome.answers {
            match Answer::read(&std::mem::take(&mut answered.bytes)) {
                Ok(answer) => round.put(host, answer),
                Err(_) => {
                    round
                        .unanswered
                        .insert(host, "its answer makes no sense: another version".into());
                }
            }
            round.timing.insert(host, answered);
        }
        Ok(round)
    }

    fn put(&mut self, host: HostId, answer: Answer) {
        match answer {
            Answer::Trouble(problem) => drop(self.unanswered.insert(host, problem)),
            answer => drop(self.answers.insert(host, answer)),
        }
    }

    /// The answers that are what was asked for.
    pub(super) fn take<T>(&mut self, read: impl Fn(Answer) -> Option<T>) -> BTreeMap<HostId, T> {
        let mut taken = BTreeMap::new();
        for (host, answer) in std::mem::take(&mut self.answers) {
            if let Some(answer) = read(answer) {
                taken.insert(host, answer);
            } else {
                self.unanswered.insert(host, "its answer is to something else".into());
            }
        }
        taken
    }

    pub(super) fn name(&self, host: HostId) -> String {
        let member = self.members.get(&host);
        member.map_or_else(|| format!("{:016x}", host.0), |member| member.name().into())
    }

    pub(super) fn unanswered(&self) -> Vec<Unanswered> {
        let told = self.unanswered.iter();
        let mut told: Vec<_> = told
            .map(|(host, problem)| Unanswered { host: self.name(*host), problem: problem.clone() })
            .collect();
        told.sort_by(|one, other| one.host.cmp(&other.host));
        told
    }
}

/// The hosts, and how they do.
pub async fn peers(cluster: &Cluster) -> Result<PeersReport, Failure> {
    let until = monotonic().after(PATIENCE);
    let (round, distinct) =
        tokio::join!(Round::of(cluster, Question::Host, until), distinct_until(cluster, until));
    let (mut round, distinct) = (round?, distinct?);
    let hosts = round.take(|answer| match answer {
        Answer::Host(host) => Some(host),
        _ => None,
    });
    let link = cluster.link.report.borrow().clone();
    let own_limits = hosts.get(&cluster.me).map(|host| host.limits);
    let mut peers = Vec::new();
    for (id, member) in round.members.iter() {
        let host = hosts.get(id);
        let state = match host {
            _ if *id == cluster.me => PeerState::This,
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
            grants_held: host.grants[0],
            grants_given: host.grants[1],
            loans_borrowed: host.loans[0],
            loans_lent: host.loans[1],
            limits: format!("{:016x}", host.limits),
            limits_same: Some(host.limits) == own_limits,
            members: host.members,
            received: host.received,
            sent: host.sent,
            lost: host.lost,
            refused: host.rejected.iter().map(refused).collect(),
            lag_ms: lag::read(&host.lag),
        });
        let timing = round.timing.get(id).filter(|_| details.is_some());
        let clock = timing.map(|timing| ClockReport {
            ahead_ms: timing.ahead_ns as f64 / 1e6,
            error_ms: timing.round_trip.as_secs_f64() * 500.0,
            round_trip_ms: timing.round_trip.as_secs_f64() * 1e3,
        });
        peers.push(PeerReport {
            host: member.name().into(),
            address: member.address,
            region: member.region().into(),
            weight: member.weight,
            state,
            gone_seconds: None,
            details,
            clock,
        });
    }
    let now = monotonic();
    peers.extend(cluster.views.noticed(|noticed| {
        let gone = noticed.gone.iter();
        gone.map(|gone| PeerReport {
            host: gone.identity.name().into(),
            address: gone.identity.address,
            region: gone.identity.region().into(),
            weight: gone.identity.weight,
            state: PeerState::Gone,
            gone_seconds: Some(now.since(gone.since).as_secs_f64()),
            details: None,
            clock: None,
        })
        .collect::<Vec<_>>()
    }));
    peers.sort_by(|one, other| one.host.cmp(&other.host));
    let details = || peers.iter().filter_map(|peer| peer.details.as_ref());
    let warnings = cluster.shared.with(|core| {
        let limited = core.in_force().in_cluster();
        let concerns = core.cluster.as_ref().map(|view| view.concerns(limited));
        Ok(concerns.into_iter().flatten().map(|concern| concern.text).collect::<Vec<_>>())
    });
    let mut warnings = warnings.await?;
    warnings.extend(cluster.overage.borrow().iter().filter_map(OverageReport::warning));
    Ok(PeersReport {
        warnings,
        cluster: link.cluster.map(|id| format!("{:016x}", id.0)),
        unanswered: round.unanswered(),
        home: details().map(|details| details.home).sum(),
        limits_same: details().all(|details| details.limits_same),
        lag_ms: lag::merged(hosts.values().map(|host| host.lag.as_slice())),
        overage: cluster.overage.borrow().to_vec(),
        distinct,
        regions: RegionReport::of(&peers),
        peers,
    })
}

fn refused((at, packets): &(u8, u64)) -> RefusedReport {
    let reason = Rejection::ALL.get(usize::from(*at));
    RefusedReport {
        reason: reason.map_or("unknown", |reason| reason.name()).into(),
        meaning: reason.map_or("for a reason that this version does not know".into(), |reason| {
            reason.to_string()
        }),
        packets: *packets,
    }
}

/// The `n` heaviest sources of all hosts together.
pub async fn top(
    cluster: &Cluster,
    n: usize,
    sort: Sort,
    live: bool,
) -> Result<ClusterTopReport, Failure> {
    let began = monotonic();
    let until = began.after(PATIENCE);
    let mut found = None;
    for wanted in top::rounds(n) {
        let first = began.after(FIRST).max(monotonic().after(PATIENCE / 4)).min(until);
        let question = Question::Candidates { sort, n: wanted as u32, live };
        let mut round = Round::of(cluster, question, first).await?;
        let named = round.take(|answer| match answer {
            Answer::Candidates(candidates) => Some(candidates),
            _ => None,
        });
        let union = top::union(sort, wanted, &named);
        let points = Round::of(cluster, Question::Points(union.places), until).await?;
        let better = sums(cluster, sort, n, round, points, named, union.bar).await?;
        // A host that was not heard this time may have been before.
        let is_better = |former: &ClusterTopReport| former.hosts.len() <= better.hosts.len();
        if found.as_ref().is_none_or(is_better) {
            found = Some(better);
        }
        let exact = found.as_ref().is_some_and(|found| found.exact);
        if exact || wanted >= MOST_PLACES || until.since(monotonic()) < PATIENCE / 4 {
            break;
        }
    }
    let took_seconds = monotonic().since(began).as_secs_f64();
    let none = || Failure::new(exit::USAGE, "no list is that long");
    found.map(|found| ClusterTopReport { took_seconds, ..found }).ok_or_else(none)
}

/// The list, from what hosts have named and what they have counted.
async fn sums(
    cluster: &Cluster,
    sort: Sort,
    n: usize,
    mut round: Round,
    mut points: Round,
    named: BTreeMap<HostId, Candidates>,
    bar: f64,
) -> Result<ClusterTopReport, Failure> {
    let mut counted = points.take(|answer| match answer {
        Answer::Points(counted) => Some(counted),
        _ => None,
    });
    let (hosts, tracked) = (named.keys().map(|host| round.name(*host)).collect(), &named);
    let tracked = tracked.values().map(|candidates| candidates.tracked).sum();
    let totals = named.values().map(|candidates| candidates.totals).fold(None, add);
    // A host that was not heard at first is not asked for what it alone has: it is left out.
    counted.retain(|host, _| named.contains_key(host));
    for (host, candidates) in named {
        if let std::collections::btree_map::Entry::Vacant(place) = counted.entry(host) {
            let why = points.unanswered.remove(&host).unwrap_or_default();
            let said = format!("only its own heaviest are counted: {why}");
            round.unanswered.insert(host, said);
            place.insert(candidates.sources);
        }
    }
    let merged = top::merge(sort, &counted);
    let exact = top::is_exact(sort, n, &merged, bar);
    let listed: Vec<_> = merged.into_iter().take(n).collect();
    let entries = cluster.shared.with(move |core| {
        let entries = listed.into_iter().map(|merged| {
            let limit = core.limit_at(&merged.sum.place);
            let same = limit.as_ref().map_or(0, |(_, number)| *number) == merged.sum.limit;
            ClusterTopEntry {
                entry: entry(&merged.sum, limit.map(|(limit, _)| limit)),
                hosts: merged.hosts,
                limit_differs: merged.differs || !same,
            }
        });
        Ok(entries.collect())
    });
    Ok(ClusterTopReport {
        sources: entries.await?,
        hosts,
        unanswered: round.unanswered(),
        exact,
        unlisted_at_most: if exact { 0.0 } else { bar },
        tracked,
        totals,
        took_seconds: 0.0,
    })
}

fn add(sum: Option<Totals>, more: Option<Totals>) -> Option<Totals> {
    let (Some(sum), Some(more)) = (sum, more) else { return sum.or(more) };
    Some(Totals {
        passed_pps: sum.passed_pps + more.passed_pps,
        dropped_pps: sum.dropped_pps + more.dropped_pps,
        passed_bps: sum.passed_bps + more.passed_bps,
        dropped_bps: sum.dropped_bps + more.dropped_bps,
        seconds: sum.seconds.min(more.seconds),
    })
}

fn entry(sum: &Counted, limit: Option<crate::report::LimitReport>) -> TopEntry {
    let at = |ms| moment(groups::moment(ms, SystemTime::now()));
    let Place { source, class } = sum.place;
    TopEntry {
        source,
        class: (!class.is_any()).then_some(class),
        state: sum.state,
        limit,
        passed: sum.passed,
        dropped: sum.dropped,
        bytes: sum.bytes,
        uncounted: sum.uncounted,
        first_seen: at(sum.first_seen_ms),
        last_seen: at(sum.last_seen_ms),
        pps: sum.pps,
        bps: sum.bps,
        pps_seconds: sum.seconds,
    }
}

/// What all hosts know of the source that `address` belongs to.
pub async fn source(cluster: &Cluster, address: IpAddr) -> Result<ClusterSourceReport, Failure> {
    let until = monotonic().after(PATIENCE);
    let mut round = Round::of(cluster, Question::Source(address), until).await?;
    let known = round.take(|answer| match answer {
        Answer::Source(known) => Some(known),
        _ => None,
    });
    let own = known.get(&cluster.me).map(|known| known.source);
    let mut hosts: Vec<_> =
        known.iter().flat_map(|(host, known)| of_host(round.name(*host), known)).collect();
    hosts.sort_by(|one, other| (&one.host, one.class).cmp(&(&other.host, other.class)));
    Ok(ClusterSourceReport {
        source: own.unwrap_or_else(|| address.into()),
        sums: sums_of(&hosts),
        hosts,
        unanswered: round.unanswered(),
    })
}

fn of_host(host: String, known: &Known) -> impl Iterator<Item = HostSource> {
    known.buckets.iter().map(move |held| HostSource {
        host: host.clone(),
        class: (!held.class.is_any()).then_some(held.class),
        state: held.state,
        limit: held.limit.clone(),
        estimate: held.estimate,
        got: held.got,
        share: held.share.map(|[share, _]| share),
        floor: held.share.map(|[_, floor]| floor),
        listed: known.listed,
    })
}

fn sums_of(hosts: &[HostSource]) -> Vec<SourceSums> {
    let mut sums: BTreeMap<_, SourceSums> = BTreeMap::new();
    for host in hosts {
        let none = || SourceSums { class: host.class, ..SourceSums::default() };
        let sum = sums.entry(host.class).or_insert_with(none);
        sum.hosts += usize::from(host.state != SourceState::Light);
        sum.got.add(&host.got);
        if let Some(share) = host.share {
            sum.share = Some(sum.share.unwrap_or_default() + share);
        }
    }
    sums.into_values().collect()
}

/// How many distinct sources all hosts have seen.
pub async fn distinct(cluster: &Cluster) -> Result<ClusterDistinctReport, Failure> {
    distinct_until(cluster, monotonic().after(PATIENCE)).await
}

async fn distinct_until(
    cluster: &Cluster,
    until: Moment,
) -> Result<ClusterDistinctReport, Failure> {
    let mut round = Round::of(cluster, Question::Distinct, until).await?;
    let told = round.take(|answer| match answer {
        Answer::Distinct(distinct) => Some(distinct),
        _ => None,
    });
    let mut registers: BTreeMap<HostId, Distinct> = BTreeMap::new();
    for (host, distinct) in told {
        match distinct {
            Some(distinct) => drop(registers.insert(host, distinct)),
            None => drop(round.unanswered.insert(host, "it does not count sources".into())),
        }
    }
    let (groups, broken) = distinct::merge(&registers);
    for host in broken {
        round.unanswered.insert(host, "its registers make no sense".into());
    }
    let groups = groups.into_iter().map(|group| DistinctGroup {
        hosts: group
            .hosts
            .iter()
            .map(|(host, sources)| DistinctHost { host: round.name(*host), sources: *sources })
            .collect(),
        distinct: observe::Distinct {
            sources: group.sources,
            standard_error: Ranks::STANDARD_ERROR,
            window_s: (1_u64 << WINDOW_SHIFT) as f64 / 1e9,
        },
        windows_apart: group.apart,
    });
    Ok(ClusterDistinctReport { groups: groups.collect(), unanswered: round.unanswered() })
}
