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
use api::ListEntry;
use model::lists::{ListChanges, Listing, find};
use model::source::Counts;
use model::{Ban, Limit, Target};
use model::{Least, Offered};
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
            let target = source.limit.map(|limit| limit.target);
            let limit = target.and_then(|target| rules.limit_for(&target));
            let (Some(offered), Some(limit)) = (candidates.get(&bucket), limit) else { return };
            let Some(ban) = limit.ban.filter(|ban| ban.is_reached(&limit, offered)) else { return };
            let (source, target) = (source.source, limit.target);
            let before = self.suspects.get(&bucket);
            let before = before.filter(|before| (before.source, before.target) == (source, target));
            let offered = before.map_or(*offered, |before| before.offered.and(offered));
            let room = settled && guilty.len() < MAX_AT_ONCE;
            if room && ban.is_due(&offered) && may_ban(rules, source) {
                guilty.insert(source, listing(&limit, &ban, &offered));
            }
            suspects.insert(bucket, Suspect { source, target, offered });
        });
        (suspects, guilty)
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

/// The entry for a source that has offered so much.
fn listing(limit: &Limit, ban: &Ban, offered: &Offered) -> Listing {
    let (rate, times) = offered.excess(limit);
    let seconds = offered.seconds();
    let reason =
        format!("over {rate} by {times}× for {seconds}s (limit for {})", limit.target.short());
    Listing::banned(ban.lasts, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Core;
    use crate::fake::Fake;
    use crate::rules::{confirm, limits, lists};
    use api::requests::ChangeOptions;
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
        limit.banning(ban.then_some(Ban { after: 3, factor: 5, lasts: 60 })).unwrap()
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
        assert_eq!(entry.reason.as_deref(), Some("over 10pps by 100× for 3s (limit for default)"));
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
        let ban = Ban { after: 1, factor: 2, lasts: 1 };
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
