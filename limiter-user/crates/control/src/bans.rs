//! Bans: sources that go on to be far over their limit are put on the deny list for a time.
//!
//! Once a second, and only while a limit with a ban is in force, all counts are compared with those a
//! second before. Few sources have sent enough for any ban; only of those is asked which limit they
//! have. The entries end by themselves, in the kernel. While a change of limits waits to be confirmed
//! nobody is banned.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::rules::Rules;
use api::{ListEntry, SourceReport};
use limiter_common::evidence::Evidence;
use model::lists::{ListChanges, Listing, find};
use model::source::Counts;
use model::{Least, Offered, evidence_text};
use model::{Limit, Target};
use telemetry::What;

/// Looks that are closer than this are not compared.
const APART: Duration = Duration::from_millis(500);

/// Sources that are watched at the most.
const MAX_SUSPECTS: usize = 1 << 16;

/// Sources that are banned at once at the most; others are a second later.
const MAX_AT_ONCE: usize = 1024;

/// Packets and bytes of every bucket at one moment, by its number.
struct Snapshot {
    at: Instant,
    counts: Vec<(u64, u64)>,
}

/// A source that is far over its limit.
struct Suspect {
    source: IpNet,
    target: Target,
    /// What it has offered since it is.
    offered: Offered,
    /// What had been looked up of it when it became one.
    looked_up: Evidence,
    /// Why it is not banned although it is due, if that is so.
    withheld: Option<String>,
    /// Whether that was told.
    told: bool,
}

/// What is remembered from one second to the next; nothing while no limit bans.
#[derive(Default)]
pub(super) struct Bans {
    last: Option<Snapshot>,
    /// By the number of the bucket.
    suspects: HashMap<usize, Suspect>,
    /// Why the last ban failed.
    problem: Option<String>,
}

/// What was added to a count. One that has become less is another source's, who has the bucket now:
/// then all of it is new.
const fn since(before: u64, now: u64) -> u64 {
    if now < before { now } else { now - before }
}

impl Snapshot {
    /// Keeps the counts of a bucket. Returns what was added to them.
    fn note(&mut self, bucket: usize, counts: &Counts) -> (u64, u64) {
        let now = (counts.packets(), counts.bytes);
        let Some(place) = self.counts.get_mut(bucket) else { return (0, 0) };
        let before = std::mem::replace(place, now);
        (since(before.0, now.0), since(before.1, now.1))
    }
}

impl Bans {
    /// Bans who has deserved it by now.
    pub(super) fn ban(&mut self, rules: &mut Rules, now: Instant) {
        if rules.layers().amounts().all(|amount| amount.ban.is_none()) {
            *self = Self::default();
            return;
        }
        let Some(candidates) = self.candidates(rules, now) else { return };
        let (suspects, guilty) = self.judge(rules, &candidates);
        self.suspects = suspects;
        self.tell_withheld(rules);
        if guilty.is_empty() {
            return;
        }
        let changes: ListChanges =
            guilty.into_iter().map(|(source, listing)| (source, Some(listing))).collect();
        match rules.change_lists(&changes) {
            Ok(()) => {
                self.problem = None;
                tell_banned(rules, &changes);
            }
            Err(failure) => {
                let problem = failure.to_string();
                // It will be the same in a second.
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!("cannot ban {} sources: {problem}", changes.len());
                }
                self.problem = Some(problem);
            }
        }
    }

    /// The buckets whose sources have offered enough since the last look for the mildest of bans, and
    /// what they have offered; `None` if that was only just.
    fn candidates(&mut self, rules: &Rules, now: Instant) -> Option<BTreeMap<usize, Offered>> {
        let mut found = BTreeMap::new();
        let buckets = rules.plane.buckets();
        let last = self.last.take().filter(|look| look.counts.len() == buckets);
        let time = last.as_ref().map(|look| now.duration_since(look.at));
        if time.is_some_and(|time| time < APART) {
            self.last = last;
            return None;
        }
        let ns = time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let least = ns.map(|ns| Least::new(rules.layers().amounts(), ns));
        let mut look = last.unwrap_or_else(|| Snapshot { at: now, counts: vec![(0, 0); buckets] });
        look.at = now;
        rules.plane.counts(&mut |bucket, counts| {
            let (packets, bytes) = look.note(bucket, &counts);
            if let Some(ns) = ns
                && least.as_ref().is_some_and(|least| least.reached(packets, bytes))
                && found.len() < MAX_SUSPECTS
            {
                found.insert(bucket, Offered { packets, bytes, ns });
            }
        });
        self.last = Some(look);
        Some(found)
    }

    /// Who of `candidates` is far over a limit that bans, and the entries of those who have been so for
    /// long enough.
    fn judge(
        &self,
        rules: &Rules,
        candidates: &BTreeMap<usize, Offered>,
    ) -> (HashMap<usize, Suspect>, BTreeMap<IpNet, Listing>) {
        let (mut suspects, mut guilty) = (HashMap::new(), BTreeMap::new());
        // A change that is going to be reverted must not shut anyone out for longer.
        let settled = rules.unconfirmed.nothing().is_ok();
        let buckets: Vec<_> = candidates.keys().copied().collect();
        if buckets.is_empty() {
            return (suspects, guilty);
        }
        rules.plane.sources_at(&buckets, &mut |bucket, _, source| {
            // Nobody is shut out for what neighbours send.
            if source.is_group {
                return;
            }
            let target = source.limit.map(|limit| limit.target);
            let limit = target.and_then(|target| rules.limit_for(&target));
            let (Some(offered), Some(limit)) = (candidates.get(&bucket), limit) else { return };
            let Some(ban) = limit.ban.filter(|ban| ban.is_reached(&limit, offered)) else { return };
            let (source, evidence, target) = (source.source, source.evidence, limit.target);
            let before = self.suspects.get(&bucket);
            let before = before.filter(|before| (before.source, before.target) == (source, target));
            let offered = before.map_or(*offered, |before| before.offered.and(offered));
            let known = evidence.unwrap_or_default();
            let looked_up = before.map_or(known, |before| before.looked_up);
            let told = before.is_some_and(|before| before.told);
            let mut suspect = Suspect { source, target, offered, looked_up, withheld: None, told };
            let room = settled && guilty.len() < MAX_AT_ONCE;
            if room && ban.is_due(&offered) && may_ban(rules, source) {
                let evidence = known.since(looked_up);
                let excess = excess(&limit, &offered, (!ban.unverified).then_some(evidence));
                if ban.unverified || ban.is_proven(&limit, &offered, &evidence) {
                    guilty.insert(source, Listing::banned(ban.lasts, excess));
                } else {
                    suspect.withheld = Some(format!("{excess}; --ban-unverified bans anyway"));
                }
            }
            suspects.insert(bucket, suspect);
        });
        (suspects, guilty)
    }

    /// Tells once of each source that is due and not banned.
    fn tell_withheld(&mut self, rules: &mut Rules) {
        for suspect in self.suspects.values_mut().filter(|suspect| !suspect.told) {
            if let Some(reason) = suspect.withheld.clone() {
                suspect.told = true;
                rules.events.tell(What::BanWithheld { source: suspect.source, reason });
            }
        }
    }

    /// Tells why a source is not banned, if it is due.
    pub(super) fn complete(&self, report: &mut SourceReport) {
        let mut suspects = self.suspects.values();
        let suspect = suspects.find(|it| it.source == report.source && it.withheld.is_some());
        report.ban_withheld = suspect.and_then(|suspect| suspect.withheld.clone());
    }
}

fn tell_banned(rules: &mut Rules, changes: &ListChanges) {
    for (source, listing) in changes {
        let Some(listing) = listing else { continue };
        let reason = listing.reason.as_deref().unwrap_or_default().to_owned();
        let until = ListEntry::new(*source, listing).expires;
        rules.events.tell(What::Ban { source: *source, reason, until });
    }
}

/// Whether a ban would change what becomes of `source`, and may.
fn may_ban(rules: &Rules, source: IpNet) -> bool {
    let managed = rules.management.covering(source.addr()).is_some();
    // Who is allowed stays so, who is denied is so already.
    !managed && find(rules.store.lists(), source).is_none()
}

/// What a source has done that has offered so much, and what is known of it where that counts.
fn excess(limit: &Limit, offered: &Offered, evidence: Option<Evidence>) -> String {
    let (rate, times) = offered.excess(limit);
    let (seconds, target) = (offered.seconds(), limit.target.short());
    let evidence = evidence.map_or("unverified".into(), evidence_text);
    format!("over {rate} by {times}× for {seconds}s (limit for {target}), {evidence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Core;
    use crate::fake::Fake;
    use crate::rules::{confirm, limits, lists};
    use api::requests::ChangeOptions;
    use model::Ban;
    use model::input::LimitInput;
    use model::lists::Action;
    use model::target::short_prefix;

    /// A core whose limit for everyone is 10 pps and bans for 60 s after 3 s at 5 times that.
    struct Scene {
        fake: Fake,
        core: Core,
        now: Instant,
        _directory: tempfile::TempDir,
    }

    fn limit(ban: bool) -> Limit {
        let limit = Limit::new(Target::DEFAULT, "10pps".parse().unwrap(), None).unwrap();
        limit
            .banning(ban.then_some(Ban { after: 3, factor: 5, lasts: 60, unverified: true }))
            .unwrap()
    }

    /// The same limit, whose ban asks for evidence.
    fn careful() -> Limit {
        let ban = Ban { after: 3, factor: 5, lasts: 60, unverified: false };
        limit(false).banning(Some(ban)).unwrap()
    }

    impl Scene {
        fn new() -> Self {
            let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
            let mut core = fake.core(&directory);
            limits::set(&mut core.rules, &limit(true), &ChangeOptions::default()).unwrap();
            Self { fake, core, now: Instant::now(), _directory: directory }
        }

        /// Looks so long after the last second.
        fn look(&mut self, later: Duration) {
            self.core.bans.ban(&mut self.core.rules, self.now + later);
        }

        /// A second in which each of these sources offers so many packets. Returns who is banned after it.
        fn second(&mut self, sources: &[(&str, u64)]) -> Vec<String> {
            for (source, packets) in sources {
                let mut state = self.fake.state();
                let (_, dropped) = state.sources.entry((*source).to_owned()).or_default();
                *dropped += packets;
            }
            self.now += Duration::from_secs(1);
            self.look(Duration::ZERO);
            let lists = self.fake.state().lists.clone();
            lists.keys().map(short_prefix).collect()
        }
    }

    #[test]
    fn who_goes_on_to_be_far_over_the_limit_is_banned() {
        let mut scene = Scene::new();
        let sources = [("192.0.2.1", 50), ("192.0.2.2", 49), ("192.0.2.3", 1000)];
        let none: [&str; 0] = [];
        // The first look has nothing to compare with.
        for _ in 0..3 {
            assert_eq!(scene.second(&sources), none);
        }
        assert_eq!(scene.second(&sources), ["192.0.2.1", "192.0.2.3"]);
        let lists = scene.fake.state().lists.clone();
        let entry = lists.get(&"192.0.2.3/32".parse().unwrap()).unwrap();
        assert_eq!(
            entry.reason.as_deref(),
            Some("over 10pps by 100× for 3s (limit for default), unverified")
        );
        assert!(entry.ban && entry.action == Action::Deny);
        assert_eq!(entry.until, Some(entry.added + 60));
        // Not again while it is: that would begin it anew.
        std::thread::sleep(Duration::from_millis(1100));
        for _ in 0..4 {
            scene.second(&sources);
        }
        assert_eq!(&scene.fake.state().lists, &lists);
        let shown = scene.core.source("192.0.2.3".parse().unwrap()).unwrap();
        assert!(shown.listed.is_some_and(|entry| entry.ban && entry.expires.is_some()));
    }

    #[test]
    fn who_may_be_forged_is_not_banned() {
        let mut scene = Scene::new();
        limits::set(&mut scene.core.rules, &careful(), &ChangeOptions::default()).unwrap();
        let sources = [("192.0.2.1", 100), ("192.0.2.2", 100), ("192.0.2.3", 100)];
        let look_up = |scene: &mut Scene, source: &str, sampled, connected| {
            let mut state = scene.fake.state();
            let known = state.evidence.entry(source.to_owned()).or_default();
            (known.sampled, known.connected) =
                (known.sampled + sampled, known.connected + connected);
        };
        // What was looked up before does not count.
        look_up(&mut scene, "192.0.2.2", 1000, 1000);
        let none: [&str; 0] = [];
        for _ in 0..3 {
            assert_eq!(scene.second(&sources), none);
            look_up(&mut scene, "192.0.2.1", 20, 19);
            look_up(&mut scene, "192.0.2.2", 20, 2);
        }
        assert_eq!(scene.second(&sources), ["192.0.2.1"]);
        let lists = scene.fake.state().lists.clone();
        let entry = lists.get(&"192.0.2.1/32".parse().unwrap()).unwrap();
        let reason = entry.reason.as_deref().unwrap();
        assert!(reason.ends_with(", 38 of 40 samples belong to established TCP connections"));
        for _ in 0..3 {
            assert_eq!(scene.second(&sources), ["192.0.2.1"]);
        }
        let told = scene.core.rules.events.changes().events;
        let told = told.iter().filter(|event| matches!(event.what, What::BanWithheld { .. }));
        let mut told: Vec<_> = told.filter_map(|event| event.what.source()).collect();
        told.sort_unstable();
        assert_eq!(told.iter().map(short_prefix).collect::<Vec<_>>(), ["192.0.2.2", "192.0.2.3"]);
        let shown =
            |scene: &Scene, source: &str| scene.core.source(source.parse().unwrap()).unwrap();
        let withheld = shown(&scene, "192.0.2.2").ban_withheld.unwrap();
        assert!(withheld.contains("; --ban-unverified bans anyway"), "{withheld}");
        assert_eq!(shown(&scene, "192.0.2.2").evidence.unwrap().sampled, 1060);
        assert_eq!(shown(&scene, "192.0.2.1").ban_withheld, None);
        // Who asks for a ban all the same gets it.
        limits::set(&mut scene.core.rules, &limit(true), &ChangeOptions::default()).unwrap();
        assert_eq!(scene.second(&sources).len(), 3);
    }

    #[test]
    fn a_pause_begins_it_anew_and_a_look_too_early_does_not() {
        let mut scene = Scene::new();
        let (flood, pause) = ([("192.0.2.1", 80)], [("192.0.2.1", 20)]);
        let none: [&str; 0] = [];
        for seconds in [&flood, &flood, &flood, &pause, &flood, &flood] {
            assert_eq!(scene.second(seconds), none);
        }
        scene.look(Duration::from_millis(100));
        assert_eq!(scene.second(&flood), ["192.0.2.1"]);
    }

    #[test]
    fn another_source_in_the_bucket_is_another_suspect() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.second(&[("192.0.2.1", 90)]);
        }
        // Its bucket, the first one, goes to another source.
        scene.fake.state().sources.clear();
        for _ in 0..2 {
            assert!(scene.second(&[("192.0.2.9", 70)]).is_empty());
        }
        assert_eq!(scene.second(&[("192.0.2.9", 70)]), ["192.0.2.9"]);
    }

    #[test]
    fn management_and_listed_sources_are_left_alone() {
        let mut scene = Scene::new();
        scene.core.rules.protect(&["192.0.2.1/32".parse().unwrap()]);
        let entry = |action| Listing::new(action, None, None).unwrap();
        let nets = |text: &str| vec![text.parse().unwrap()];
        lists::add(
            &mut scene.core.rules,
            &nets("192.0.2.2/31"),
            &entry(Action::Allow),
            &ChangeOptions::default(),
        )
        .unwrap();
        lists::add(
            &mut scene.core.rules,
            &nets("192.0.2.4/31"),
            &entry(Action::Deny),
            &ChangeOptions::default(),
        )
        .unwrap();
        let sources = ["192.0.2.1", "192.0.2.2", "192.0.2.5", "192.0.2.6"].map(|s| (s, 500));
        let mut banned = Vec::new();
        for _ in 0..5 {
            banned = scene.second(&sources);
        }
        assert_eq!(banned, ["192.0.2.2/31", "192.0.2.4/31", "192.0.2.6"]);
    }

    #[test]
    fn nobody_is_banned_while_a_change_waits_to_be_confirmed() {
        let mut scene = Scene::new();
        let other = Limit { target: "10.0.0.0/8".parse().unwrap(), ..limit(false) };
        let how =
            ChangeOptions { confirm: Some(Duration::from_secs(60)), ..ChangeOptions::default() };
        limits::set(&mut scene.core.rules, &other, &how).unwrap();
        let flood = [("192.0.2.1", 500)];
        for _ in 0..6 {
            assert!(scene.second(&flood).is_empty());
        }
        confirm::confirm(&mut scene.core.rules).unwrap();
        assert_eq!(scene.second(&flood), ["192.0.2.1"]);
    }

    #[test]
    fn many_are_banned_a_share_a_second_and_a_failure_is_tried_again() {
        let mut scene = Scene::new();
        let names: Vec<_> = (0..1500).map(|i| format!("10.0.{}.{}", i / 256, i % 256)).collect();
        let sources: Vec<_> = names.iter().map(|name| (name.as_str(), 60)).collect();
        for _ in 0..3 {
            scene.second(&sources);
        }
        scene.fake.state().fail_publish = true;
        assert!(scene.second(&sources).is_empty());
        assert!(scene.core.bans.problem.is_some());
        assert_eq!(scene.second(&sources).len(), MAX_AT_ONCE);
        assert_eq!(scene.second(&sources).len(), 1500);
        assert_eq!(scene.core.bans.problem, None);
    }

    #[test]
    fn without_a_ban_nothing_is_remembered() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.second(&[("192.0.2.1", 90)]);
        }
        assert!(scene.core.bans.last.is_some() && scene.core.bans.suspects.len() == 1);
        limits::set(&mut scene.core.rules, &limit(false), &ChangeOptions::default()).unwrap();
        assert!(scene.second(&[("192.0.2.1", 90)]).is_empty());
        assert!(scene.core.bans.last.is_none() && scene.core.bans.suspects.is_empty());
    }

    #[test]
    fn either_unit_can_be_too_much() {
        let rate = ["10pps", "8kbit"].into_iter().collect();
        let both = LimitInput { rate, ..LimitInput::default() }.limit().unwrap();
        let ban = Ban { after: 1, factor: 2, lasts: 1, unverified: true };
        let both = both.banning(Some(ban)).unwrap();
        let ns = 1_000_000_000;
        for (packets, bytes, reached) in [(19, 1999, false), (20, 0, true), (1, 2000, true)] {
            let offered = Offered { packets, bytes, ns };
            assert_eq!(ban.is_reached(&both, &offered), reached, "{offered:?}");
            let least = Least::new([both.amount].into_iter(), ns);
            assert_eq!(least.reached(packets, bytes), reached);
        }
        let offered = Offered { packets: 20, bytes: 9000, ns };
        assert_eq!(offered.excess(&both), (both.also.unwrap().rate, 9));
    }
}
