//! Sources as looks at a table find them, over a data plane in memory.

use std::sync::Arc;

use super::*;
use crate::cluster::words::{PendingShares, RefundWorker};
use crate::fake::Fake;
use cluster::escrow::Granted;
use cluster::link::ClusterId;
use dataplane::ClusterBucket;
use model::source::{Counts, HeldShare};
use model::{Class, Limit, Target};

const MS: u64 = 1_000_000;

fn member(bucket: usize, source: &str, since_ms: u64) -> ClusterMember {
    let counts = Counts { since_ns: since_ms * MS, ..Counts::default() };
    let tag = 1000 + bucket as u64;
    ClusterMember {
        bucket: ClusterBucket { bucket, tag, counts, limited: false },
        source: source.parse().unwrap(),
        class: Class::ANY,
        limit: Limit::new(Target::DEFAULT, "1000pps".parse().unwrap(), None).unwrap(),
        share: HeldShare { share: 0.0, floor: 0.0, until: None },
    }
}

fn bounds() -> Bounds {
    Bounds { floor: Share::from_part(0.05), slowest: 1000.0 }
}

struct World {
    fake: Fake,
    sources: Sources,
    now: u64,
}

impl World {
    fn new(members: Vec<ClusterMember>) -> Self {
        let fake = Fake::default();
        fake.state().cluster = members;
        // A machine that is never too slow: how much is done at a time is tested by itself.
        let sources = Sources::new(Keys::of(ClusterId(7)), Moment(0), || Duration::ZERO);
        Self { fake, sources, now: 10_000 }
    }

    /// Some time passes, in which a bucket counts packets.
    fn send(&self, bucket: usize, passed: u64, dropped: u64) {
        let mut state = self.fake.state();
        let counts = &mut state.cluster[bucket].bucket.counts;
        counts.passed += passed;
        counts.dropped += dropped;
        state.cluster[bucket].bucket.limited = dropped > 0;
    }

    fn look(&mut self, ms: u64) -> Observation {
        self.now += ms;
        self.sources.look(&self.fake, Moment(self.now * MS), &[], bounds())
    }

    fn key(&self, source: &str) -> KeyId {
        let source: IpNet = source.parse().unwrap();
        self.sources.keys.key(&Target::from(source))
    }
}

#[test]
fn who_begins_to_send_is_found_and_told_of_until_it_is_idle() {
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 0), member(1, "192.0.2.2/32", 0)]);
    // What was counted before the first round is not of now.
    world.send(0, 1_000_000, 0);
    assert!(world.look(50).demands.is_empty() && world.sources.is_empty());
    world.send(0, 100, 0);
    world.send(1, 1, 0);
    assert!(world.look(100).demands.is_empty());
    assert_eq!(world.sources.count(), (1, 0));
    let key = world.key("192.0.2.1/32");
    // What falls is believed by three quarters.
    for (passed, dropped, part) in [(50, 0, 0.5), (50, 150, 2.0), (10, 0, 0.575)] {
        world.send(0, passed, dropped);
        let demands = world.look(100).demands;
        assert_eq!(demands.len(), 1, "{demands:?}");
        assert_eq!((demands[0].key, demands[0].limited), (key, dropped > 0));
        assert!((demands[0].part.part() - part).abs() < 1e-6, "{demands:?}");
    }
    let mut seen = Observation::default();
    for _ in 0..32 {
        seen = world.look(100);
    }
    assert_eq!(seen.over, [(key, (0, 1000))]);
    assert!(world.sources.is_empty());
}

/// What is told of a source at looks 50 ms apart that find so many more packets, as parts of a limit that takes 160 ms to
/// tell.
fn told(packets: &[u64]) -> Vec<Option<f64>> {
    let mut slow = member(0, "192.0.2.1/32", 0);
    slow.limit = Limit::new(Target::DEFAULT, "200pps".parse().unwrap(), None).unwrap();
    let mut world = World::new(vec![slow]);
    world.look(50);
    let look = |&packets: &u64| {
        world.send(0, packets, 0);
        world.look(50).demands.first().map(|demand| (demand.part.part() * 10.0).round() / 10.0)
    };
    packets.iter().map(look).collect()
}

#[test]
fn who_stops_is_told_of_at_once() {
    // The first look only begins, and of what nothing is known yet the second one tells.
    let steady = [30; 5];
    assert_eq!(
        told(&[&steady[..], &[0; 4]].concat())[1..],
        [Some(3.0), None, Some(3.0), None, Some(0.0), None, None, None]
    );
    // Another host gets its share by this: what comes again is told as what begins.
    assert_eq!(told(&[&steady[..], &[0, 0, 40]].concat())[7..], [Some(2.0)]);
    // A few packets may be late.
    let slow = [3; 16];
    assert!(!told(&[&slow[..], &[0; 3]].concat())[16..].contains(&Some(0.0)));
}

#[test]
fn who_sends_in_bursts_has_not_stopped_between_them() {
    let bursts = [50, 0, 0].repeat(6);
    let told = told(&bursts);
    assert!(told[6..].iter().flatten().all(|part| *part > 1.0), "{told:?}");
}

#[test]
fn a_source_is_tracked_for_as_long_as_its_bucket_takes_to_fill() {
    let mut slow = member(0, "192.0.2.1/32", 0);
    slow.limit = Limit::new(Target::DEFAULT, "5/minute".parse().unwrap(), Some(1)).unwrap();
    let mut world = World::new(vec![slow]);
    world.look(50);
    world.send(0, 10, 0);
    world.look(100);
    let key = world.key("192.0.2.1/32");
    // It wants a packet all the time.
    for _ in 0..13 {
        let demands = world.look(1_000).demands;
        assert!(demands[0].key == key && demands[0].part >= Share::from_part(0.8), "{demands:?}");
    }
    let over: Vec<_> = (0..3).flat_map(|_| world.look(1_000).over).collect();
    assert_eq!(over, [(key, (0, 1000))]);
}

#[test]
fn who_has_long_been_silent_makes_room() {
    let address = |n: usize| format!("192.0.{}.{}/32", n / 200, n % 200 + 1);
    let count = 300;
    let members = (0..count).map(|n| {
        let limit = Limit::new(Target::DEFAULT, "5/minute".parse().unwrap(), None).unwrap();
        ClusterMember { limit, ..member(n, &address(n), 0) }
    });
    let mut world = World::new(members.collect());
    world.look(50);
    (0..200).for_each(|n| world.send(n, 10, 0));
    world.look(100);
    assert_eq!(world.sources.len(), 200);
    // There is room for 256, of whom 200 send no more.
    (0..40).for_each(|_| drop(world.look(100)));
    (200..count).for_each(|n| world.send(n, 10, 0));
    world.look(100);
    assert!((200..count).all(|n| world.sources.bucket(world.key(&address(n))).is_some()));
    assert!(world.sources.len() <= world.sources.room.most());
}

#[test]
fn the_share_of_a_source_that_pauses_is_kept_for_as_long_as_it_is_tracked() {
    // Found late: its only packet tells little, and each silent look after it less.
    let mut new = member(0, "192.0.2.1/32", 9_650);
    new.limit = Limit::new(Target::DEFAULT, "20pps".parse().unwrap(), None).unwrap();
    let mut world = World::new(vec![new]);
    world.look(0);
    world.send(0, 1, 0);
    let mut parts = Vec::new();
    let over = (0..60).find_map(|_| {
        world.now += 100;
        let bounds = Bounds { slowest: 20.0, ..bounds() };
        let seen = world.sources.look(&world.fake, Moment(world.now * MS), &[], bounds);
        parts.extend(seen.demands.iter().map(|demand| demand.part));
        (!seen.over.is_empty()).then_some(world.now)
    });
    assert!(over.is_some_and(|over| over >= 13_000), "{over:?} {parts:?}");
    assert!(parts.len() > 2 && parts.iter().all(|part| *part >= bounds().floor), "{parts:?}");
}

#[test]
fn a_source_that_is_limited_is_noticed_at_once() {
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 9_990)]);
    world.send(0, 10, 30);
    let source: IpNet = "192.0.2.1/32".parse().unwrap();
    world.now += 10;
    let seen = world.sources.look(&world.fake, Moment(world.now * MS), &[source], bounds());
    // 40 packets in 20 ms where 20 may come.
    assert!(
        seen.demands[0].limited && (seen.demands[0].part.part() - 2.0).abs() < 1e-6,
        "{seen:?}"
    );
}

#[test]
fn a_bucket_that_becomes_another_source_s_is_that_of_a_new_one() {
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 0)]);
    world.look(50);
    world.send(0, 100, 900);
    world.look(50);
    assert_eq!(world.sources.count(), (1, 1));
    let other = ClusterMember {
        bucket: ClusterBucket { tag: 5, ..member(0, "192.0.2.9/32", 10_100).bucket },
        ..member(0, "192.0.2.9/32", 10_100)
    };
    world.fake.state().cluster = vec![other];
    world.send(0, 5, 45);
    let seen = world.look(50);
    assert_eq!(seen.gone, [world.key("192.0.2.1/32")]);
    assert_eq!(seen.demands[0].key, world.key("192.0.2.9/32"));
    assert_eq!(world.sources.bucket(seen.demands[0].key), Some((0, 5)));
}

#[test]
fn two_buckets_of_one_number_have_their_floor() {
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 0)]);
    world.look(50);
    world.send(0, 100, 900);
    world.look(50);
    let key = world.key("192.0.2.1/32");
    world.fake.state().cluster.push(member(1, "192.0.2.1/32", 10_100));
    world.send(1, 100, 900);
    let seen = world.look(50);
    // The table has grown: it is gone through anew.
    let seen = if seen.over.is_empty() { world.look(50) } else { seen };
    assert_eq!(seen.over, [(key, (0, 1000))]);
    assert!(seen.demands.is_empty() && world.sources.is_empty());
    assert_eq!(world.sources.twice.len(), 1);
    world.send(0, 100, 900);
    assert!(world.look(50).demands.is_empty() && world.sources.is_empty());
}

#[test]
fn what_could_not_be_told_is_told_again_and_what_is_gone_is_forgotten() {
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 0), member(1, "192.0.2.2/32", 0)]);
    world.look(50);
    world.send(0, 100, 900);
    world.send(1, 100, 900);
    world.look(50);
    let plane = world.fake.clone();
    let giver = RefundWorker::start(Arc::new(plane.clone())).unwrap();
    let [first, second] = ["192.0.2.1/32", "192.0.2.2/32"].map(|source| world.key(source));
    let grant = |key| Granted { key, share: Share::from_part(0.5), until: Moment(99) };
    let mut words = PendingShares::default();
    words.grant(vec![grant(first), grant(second)], &world.sources);
    world.fake.state().missed.insert(0, 6);
    words.tell(&plane, Some(&world.sources), &giver);
    // Nothing may be said to others while one is left.
    assert_eq!((world.fake.state().shares.len(), words.len()), (1, 1));
    assert_eq!(world.fake.state().missed[&0], 2);
    words.revoke((0, 1000), Moment(50));
    words.tell(&plane, Some(&world.sources), &giver);
    assert_eq!((world.fake.state().shares.len(), words.len()), (2, 0));
    assert_eq!(world.fake.state().missed[&0], 0);
    assert_eq!(world.fake.state().shares[&0].share, Share::NONE);
    assert_eq!(world.fake.state().shares[&1].until_ns, 99);
    world.fake.state().cluster.remove(1);
    world.fake.state().shares.clear();
    words.grant(vec![grant(second)], &world.sources);
    let gone = words.tell(&plane, Some(&world.sources), &giver);
    assert_eq!((world.fake.state().shares.len(), gone, words.len()), (0, vec![second], 0));
}

#[test]
fn there_is_room_for_so_many_and_who_came_first_stays() {
    const ALL: usize = 1500;
    let source = |at: usize| format!("192.0.{}.{}/32", at / 250, at % 250 + 1);
    let members = (0..ALL).map(|at| member(at, &source(at), 0)).collect();
    let mut world = World::new(members);
    let run = |world: &mut World, looks: usize| {
        let mut over = Vec::new();
        for _ in 0..looks {
            (0..ALL).for_each(|bucket| world.send(bucket, 10, 90));
            over.extend(world.look(100).over);
        }
        over
    };
    assert!(run(&mut world, 25).is_empty());
    let room = world.sources.room.most();
    assert_eq!((world.sources.count(), world.sources.len()), ((room, room), room));
    assert_eq!(world.sources.left_out(), ALL - room);
    // It has too much to do for a while.
    let long = Duration::from_secs(2);
    for at in 1..=4 {
        world.sources.room.worked(long);
        world.sources.room.renew(Moment(world.now * MS).after(long * at), room);
    }
    let fewer = world.sources.room.most();
    assert!(fewer < room);
    let over = run(&mut world, 10);
    assert_eq!((over.len(), world.sources.len()), (room - fewer, fewer));
    let tracked = |at: usize| world.sources.bucket(world.key(&source(at))).is_some();
    assert!((0..fewer).all(tracked) && !(fewer..ALL).any(tracked));
    // Others have words of their own once there was no room for so long.
    assert!(run(&mut world, 20).is_empty());
    let untracked = &mut world.sources.untracked;
    assert!(untracked.is_crowded());
    let words = untracked.renew(Moment(world.now * MS).after(long));
    let words: Vec<usize> = words.into_iter().map(|(bucket, _)| bucket).collect();
    assert_eq!(words, Vec::from_iter(fewer..ALL));
    assert_eq!(world.sources.left_out(), 0);
    // Some send no more: then there is room for all others.
    for _ in 0..60 {
        (ALL - fewer / 2..ALL).for_each(|bucket| world.send(bucket, 10, 90));
        world.look(100);
    }
    let sources = &world.sources;
    assert!(!sources.untracked.is_crowded());
    assert_eq!((sources.untracked.len(), sources.len()), (0, fewer / 2));
}

#[test]
fn a_source_with_two_buckets_has_no_word_where_there_is_no_room() {
    const ALL: usize = 600;
    let source = |at: usize| format!("192.0.{}.{}/32", at / 250, at % 250 + 1);
    let mut all: Vec<_> = (0..ALL).map(|at| member(at, &source(at), 0)).collect();
    all.push(member(ALL, &source(ALL - 1), 0));
    let mut world = World::new(all);
    let mut run = |sends: std::ops::Range<usize>, looks: usize| {
        for _ in 0..looks {
            sends.clone().for_each(|bucket| world.send(bucket, 10, 90));
            world.look(100);
        }
        let later = Moment(world.now * MS).after(Duration::from_secs(1));
        let words = world.sources.untracked.renew(later);
        [ALL - 1, ALL].map(|at| words.iter().any(|(bucket, _)| *bucket == at))
    };
    assert_eq!(run(0..ALL, 60), [true, false]);
    assert_eq!(run(0..ALL + 1, 10), [false, false]);
}

#[test]
fn all_have_their_turn_where_there_is_no_time_for_all_at_once() {
    let source = |at: usize| format!("192.0.{}.{}/32", at / 250, at % 250 + 1);
    let mut world = World::new((0..700).map(|at| member(at, &source(at), 0)).collect());
    for at in 1..=3 {
        let room = &mut world.sources.room;
        room.renew(Moment(0).after(Duration::from_secs(at)), room.most());
    }
    for _ in 0..20 {
        (0..700).for_each(|bucket| world.send(bucket, 10, 90));
        world.look(100);
    }
    assert_eq!(world.sources.len(), 700);
    // Whatever is slow: so many at a time.
    world.sources.pace.took(700, Duration::from_secs(9));
    world.sources.pace.took(256, Duration::from_secs(9));
    let turns: Vec<Vec<usize>> = (0..3).map(|_| world.sources.whose_turn()).collect();
    assert!(turns.iter().all(|turn| turn.len() == 256));
    let mut seen = turns.concat();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 700);
    // One that begins to be limited does not wait for its turn.
    let waiting = (0..700).find(|at| !turns[2].contains(at)).unwrap();
    let noticed: IpNet = source(waiting).parse().unwrap();
    (0..700).for_each(|bucket| world.send(bucket, 100, 0));
    world.now += 1000;
    world.look(100);
    world.send(waiting, 10, 90);
    world.now += 100;
    let at = Moment(world.now * MS);
    let seen = world.sources.look(&world.fake, at, &[noticed], bounds());
    let key = world.key(&source(waiting));
    assert!(seen.demands.iter().any(|demand| demand.key == key && demand.limited));
}

#[test]
fn what_sources_share_is_tracked_by_its_target_without_a_search() {
    let mut all = member(100, "::/0", 0);
    all.limit.target = "default aggregate".parse().unwrap();
    let mut world = World::new(vec![member(0, "192.0.2.1/32", 0), all]);
    let key = world.sources.keys.key(&"default aggregate".parse().unwrap());
    // A bucket of that number is not in the table, so no search finds it.
    assert!(world.look(50).demands.is_empty());
    assert!(world.sources.bucket(key).is_some());
    world.send(1, 200, 200);
    let demands = world.look(100).demands;
    assert_eq!(demands.len(), 1, "{demands:?}");
    assert_eq!((demands[0].key, demands[0].limit.target.aggregate), (key, true));
    assert!((demands[0].part.part() - 4.0).abs() < 1e-6 && demands[0].limited, "{demands:?}");
}
