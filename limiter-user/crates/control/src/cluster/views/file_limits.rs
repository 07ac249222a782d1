//! Whether the configuration files of all hosts have the same limits of the cluster.
//!
//! Limits that are set at run time come to all hosts; those of a file are each host's own. A host that lacks one lets
//! everything through that is under it, and nothing else shows that. So each asks all others from time to time:
//! who has the same says no more than that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::super::Cluster;
use super::super::link::monotonic;
use super::round::{Round, TIMEOUT};
use api::error::Failure;
use cluster::queries::{Answer, FileLimit, MAX_FILE_LIMITS, Question};

/// How often the others are asked.
// A file changes seldom, and where it is the same a question and its answer take a frame each.
const EVERY: Duration = Duration::from_secs(5);

/// Differences that are told at most.
// Beyond a few lines the files differ as a whole, and `status` should stay readable.
const MAX_REPORTED: usize = 5;

/// A limit that the file of another host has and this one's has not, or the other way round, or with other words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cluster) struct Difference {
    /// Its target: sources, and the class of their packets.
    target: String,
    /// The limit of this host's file, if it has one.
    here: Option<String>,
    /// Of the other hosts' files.
    there: Option<String>,
    /// Those hosts.
    hosts: Vec<String>,
}

/// Asks until the link is gone.
pub(in crate::cluster) async fn serve(cluster: Cluster, tell: watch::Sender<Arc<Vec<Difference>>>) {
    // An error means that the link is gone: the receiver's sender has ended.
    while cluster.link.members.has_changed().is_ok() {
        if cluster.link.members.borrow().len() <= 1 {
            // A host that is alone again must not go on warning about hosts that are gone.
            tell.send_replace(Arc::default());
        } else if let Ok(found) = look(&cluster).await {
            // Those that did not answer may be asked the next time.
            tell.send_replace(Arc::new(found));
        }
        sleep(EVERY).await;
    }
}

async fn look(cluster: &Cluster) -> Result<Vec<Difference>, Failure> {
    let mine = cluster.shared.with(|core| Ok(core.rules.file.clustered())).await?;
    let question = Question::FileLimits(mine.hash);
    let mut round = Round::of(cluster, question, monotonic().after(TIMEOUT)).await?;
    let answers = round.take(|answer| match answer {
        Answer::FileLimits(limits) => Some(limits),
        _ => None,
    });
    let theirs = answers
        .into_iter()
        // No list means the same limits, so there is nothing to compare.
        .filter_map(|(host, limits)| Some((round.name(host), limits?)))
        .collect();
    Ok(differences(&mine.list, &theirs))
}

/// In what the files of others differ from `mine`, in the order of the limits. Lists that are cut say nothing of
/// what would come after their end.
fn differences(mine: &[FileLimit], others: &BTreeMap<String, Vec<FileLimit>>) -> Vec<Difference> {
    let end = |list: &[FileLimit]| {
        list.last().filter(|_| list.len() >= MAX_FILE_LIMITS).map(|last| last.target.clone())
    };
    let of = |list: &[FileLimit]| -> BTreeMap<String, String> {
        list.iter().map(|it| (it.target.clone(), it.limit.clone())).collect()
    };
    let mut found = BTreeMap::<_, Vec<String>>::new();
    for (host, theirs) in others {
        // The shorter of both lists: beyond its end, missing does not mean absent.
        let end = end(mine).into_iter().chain(end(theirs)).min();
        let (mine, theirs) = (of(mine), of(theirs));
        let mut targets: Vec<_> = mine.keys().chain(theirs.keys()).collect();
        targets.sort();
        targets.dedup();
        // Lists are sorted by target before they are cut, so one target marks the end.
        targets.retain(|target| end.as_ref().is_none_or(|end| *target <= end));
        for target in targets {
            let (here, there) = (mine.get(target).cloned(), theirs.get(target).cloned());
            if here != there {
                // By difference and not by host: a hundred hosts with one file make one line.
                found.entry((target.clone(), here, there)).or_default().push(host.clone());
            }
        }
    }
    let all = found.into_iter();
    all.map(|((target, here, there), hosts)| Difference { target, here, there, hosts }).collect()
}

/// What is to be said of them.
pub(in crate::cluster) fn told(all: &[Difference]) -> Vec<String> {
    let none = || "none".to_owned();
    let mut told: Vec<_> = all
        .iter()
        .take(MAX_REPORTED)
        .map(|Difference { target, here, there, hosts }| {
            format!(
                "configuration files differ in the limit of the cluster for {target}: {} here, {} on {}. Where it is \
                 missing, all that is under it passes: let the files say the same, or use `limiter limit set --scope \
                 cluster`",
                here.clone().unwrap_or_else(none),
                there.clone().unwrap_or_else(none),
                hosts.join(", ")
            )
        })
        .collect();
    if all.len() > MAX_REPORTED {
        told.push(format!(
            "configuration files differ in {} more limits of the cluster",
            all.len() - MAX_REPORTED
        ));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(list: &[(&str, &str)]) -> Vec<FileLimit> {
        let limit = |(target, limit): &(&str, &str)| FileLimit {
            target: (*target).into(),
            limit: (*limit).into(),
        };
        list.iter().map(limit).collect()
    }

    #[test]
    fn what_differs_is_told_with_all_hosts_that_say_the_same() {
        let mine = limits(&[("10.0.0.0/8", "5pps"), ("default", "1pps")]);
        let others = BTreeMap::from([
            ("b".to_owned(), limits(&[("default", "1pps")])),
            ("c".to_owned(), limits(&[("default", "2pps"), ("192.0.2.0/24", "9pps")])),
            ("d".to_owned(), mine.clone()),
        ]);
        let found = differences(&mine, &others);
        let told = told(&found);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("for 10.0.0.0/8: 5pps here, none on b, c."), "{told:?}");
        assert!(told[1].contains("for 192.0.2.0/24: none here, 9pps on c."), "{told:?}");
        assert!(told[2].contains("for default: 1pps here, 2pps on c."), "{told:?}");
        assert!(differences(&mine, &BTreeMap::new()).is_empty());
    }

    #[test]
    fn what_was_cut_off_is_no_difference_and_not_all_is_told() {
        let many = |from: usize| -> Vec<FileLimit> {
            let all = (from..from + MAX_FILE_LIMITS)
                .map(|at| FileLimit { target: format!("{at:06}"), limit: "1pps".into() });
            all.collect()
        };
        let found = differences(&many(10), &BTreeMap::from([("b".to_owned(), many(0))]));
        // The first ten are missing here; its last ten are beyond what the other has told.
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|difference| difference.here.is_none()));
        let told = told(&found);
        assert_eq!(told.len(), MAX_REPORTED + 1);
        assert!(told[MAX_REPORTED].contains("5 more"), "{told:?}");
    }
}
