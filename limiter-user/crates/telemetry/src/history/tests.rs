use limiter_common::abi::{Counters, Internal, Reason, Tally};
use proptest::prelude::*;

use super::*;
use model::Distinct;

/// A wall clock and a monotonic one, ms, and what was counted.
#[derive(Clone, Copy)]
struct Scene {
    wall: u64,
    monotonic: u64,
    packets: u64,
}

const START: Scene = Scene { wall: 1_800_000_000_000, monotonic: 5_000, packets: 100 };

impl Scene {
    fn sample(&self) -> Sample {
        let mut counters = Counters::default();
        let packets = self.packets;
        counters.verdicts[Reason::OverLimit as usize] = Tally { packets, bytes: 60 * packets };
        counters.internal[Internal::Promotions as usize] = packets / 10;
        Sample {
            time: UNIX_EPOCH + Duration::from_millis(self.wall),
            monotonic_ns: self.monotonic * 1_000_000,
            counters,
            noise: 0.5,
            distinct: Some(Distinct { sources: 7.0, standard_error: 0.01, window_s: 1.0 }),
        }
    }

    fn pass(&mut self, ms: u64, packets: u64) -> Sample {
        self.wall += ms;
        self.monotonic += ms;
        self.packets += packets;
        self.sample()
    }
}

fn seconds(history: &History, since: u64) -> Vec<(f64, Option<Slot>)> {
    history.series(Duration::from_secs(since), Duration::ZERO, Some(Duration::from_secs(1))).points
}

fn counted(points: &[(f64, Option<Slot>)]) -> u64 {
    let slots = points.iter().filter_map(|(_, slot)| slot.as_ref());
    slots.map(|slot| slot.tallies()[Reason::OverLimit as usize].packets).sum()
}

#[test]
fn each_second_has_what_was_added_in_it() {
    let (mut scene, mut history) = (START, History::default());
    history.record(&scene.sample());
    assert!(seconds(&history, 60).iter().all(|(_, slot)| slot.is_none()), "only where it starts");
    for second in 1..=5 {
        history.record(&scene.pass(1000, second * 10));
    }
    let distinct = history.distinct();
    assert_eq!((distinct.len(), distinct[SECONDS - 6]), (SECONDS, None));
    assert!(distinct[SECONDS - 5..].iter().all(|sources| *sources == Some(7.0)));
    let points = seconds(&history, 4);
    let packets: Vec<_> = points
        .iter()
        .map(|(_, slot)| slot.unwrap().tallies()[Reason::OverLimit as usize].packets)
        .collect();
    assert_eq!(packets, [10, 20, 30, 40, 50]);
    assert_eq!(points[4].0, 1_800_000_005.0);
    let slot = points[4].1.unwrap();
    assert_eq!((slot.seconds(), slot.distinct(), slot.tracked()), (1.0, Some(7.0), 25));
    // The same by the minute, and as one step.
    let week = history.series(Duration::from_secs(7200), Duration::ZERO, None);
    assert_eq!((week.step, counted(&week.points)), (60, 150));
    let one =
        history.series(Duration::from_secs(60), Duration::ZERO, Some(Duration::from_secs(60)));
    assert_eq!(counted(&one.points), 150);
}

#[test]
fn a_short_pause_is_spread_and_a_long_one_is_a_gap() {
    let (mut scene, mut history) = (START, History::default());
    history.record(&scene.sample());
    history.record(&scene.pass(3000, 10));
    let points = seconds(&history, 2);
    let parts: Vec<_> = points
        .iter()
        .map(|(_, slot)| slot.unwrap().tallies()[Reason::OverLimit as usize].packets)
        .collect();
    assert_eq!(parts, [4, 3, 3]);
    history.record(&scene.pass(100_000, 500));
    let points = seconds(&history, 99);
    assert!(points[..99].iter().all(|(_, slot)| slot.is_none()));
    let after = points[99].1.unwrap();
    assert_eq!((after.seconds(), counted(&points)), (100.0, 500));
}

#[test]
fn a_step_of_the_wall_clock_neither_doubles_nor_skips() {
    let (mut scene, mut history) = (START, History::default());
    history.record(&scene.sample());
    for _ in 0..10 {
        history.record(&scene.pass(1000, 5));
    }
    for step in [-3_600_000_i64, 86_400_000] {
        scene.wall = scene.wall.checked_add_signed(step).unwrap();
        history.record(&scene.pass(1000, 5));
    }
    let points = seconds(&history, 11);
    assert!(points.iter().all(|(_, slot)| slot.is_some()));
    assert_eq!((points.len(), counted(&points)), (12, 60));
    assert_eq!(points[11].0, scene.wall as f64 / 1e3, "told by the clock of the present");
    assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn fresh_maps_count_from_nothing() {
    let (mut scene, mut history) = (START, History::default());
    history.record(&scene.sample());
    scene.packets = 0;
    history.record(&scene.pass(1000, 30));
    assert_eq!(counted(&seconds(&history, 1)), 30);
}

#[test]
fn memory_is_bounded() {
    assert_eq!(size_of::<Slot>(), 376);
    assert!((SECONDS + MINUTES) * size_of::<Slot>() <= 5 << 20);
    let (mut scene, mut history) = (START, History::default());
    history.record(&scene.sample());
    for _ in 0..2 * SECONDS {
        history.record(&scene.pass(1000, 1));
    }
    assert_eq!(history.seconds.slots.len(), SECONDS);
    assert_eq!(counted(&seconds(&history, SECONDS as u64 - 1)), SECONDS as u64);
    let week = history.series(Duration::from_secs(MAX_AGE), Duration::ZERO, None);
    assert_eq!(counted(&week.points), 2 * SECONDS as u64);
    assert!(week.points.len() <= 400, "{}", week.points.len());
}

struct Kept {
    directory: tempfile::TempDir,
}

impl Kept {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("history")
    }

    fn open(&self, scene: &Scene, same_maps: bool) -> (Keeper, History, Option<String>) {
        Keeper::open(&self.path(), &scene.sample(), same_maps)
    }
}

#[test]
fn a_restart_keeps_it_and_shows_the_gap() {
    let (mut scene, kept) = (START, Kept::new());
    let (mut keeper, mut history, problem) = kept.open(&scene, true);
    assert_eq!(problem, None);
    history.record(&scene.sample());
    for _ in 0..10 {
        history.record(&scene.pass(1000, 5));
    }
    keeper.write(&history.patch(&keeper)).unwrap();
    history.record(&scene.pass(1000, 7));
    keeper.write(&history.patch(&keeper)).unwrap();
    let size = std::fs::metadata(kept.path()).unwrap().len();
    // Down for half a minute, in which the data plane goes on to count.
    scene.pass(30_000, 90);
    let (mut keeper, mut again, problem) = kept.open(&scene, true);
    assert_eq!((problem, counted(&seconds(&again, 60))), (None, 57));
    again.record(&scene.pass(1000, 10));
    let points = seconds(&again, 60);
    assert_eq!(counted(&points), 157);
    assert_eq!(points.last().unwrap().1.unwrap().seconds(), 31.0);
    assert_eq!(points.iter().filter(|(_, slot)| slot.is_some()).count(), 12);
    keeper.write(&again.patch(&keeper)).unwrap();
    assert_eq!(std::fs::metadata(kept.path()).unwrap().len(), size, "of a fixed size");
    // With fresh maps all that they have counted is new.
    scene.pass(5_000, 0);
    scene.packets = 1000;
    let (_, mut fresh, _) = kept.open(&scene, false);
    fresh.record(&scene.pass(1000, 0));
    assert_eq!(counted(&seconds(&fresh, 60)), 1157);
}

#[test]
fn a_reboot_is_a_gap_by_the_wall_clock() {
    let (mut scene, kept) = (START, Kept::new());
    let (mut keeper, mut history, _) = kept.open(&scene, true);
    history.record(&scene.sample());
    history.record(&scene.pass(1000, 5));
    keeper.write(&history.patch(&keeper)).unwrap();
    scene.pass(600_000, 0);
    (scene.monotonic, scene.packets) = (2_000, 3);
    let (_, mut again, _) = kept.open(&scene, true);
    again.record(&scene.pass(1000, 4));
    let points = seconds(&again, 700);
    assert_eq!(counted(&points), 5 + 7);
    assert_eq!(points.last().unwrap().1.unwrap().seconds(), 601.0);
}

#[test]
fn a_damaged_file_is_set_aside_and_a_torn_slot_left_out() {
    let (mut scene, kept) = (START, Kept::new());
    let (mut keeper, mut history, _) = kept.open(&scene, true);
    history.record(&scene.sample());
    for _ in 0..10 {
        history.record(&scene.pass(1000, 5));
    }
    let patch = history.patch(&keeper);
    keeper.write(&patch).unwrap();
    let good = std::fs::read(kept.path()).unwrap();
    let mut torn = good.clone();
    torn[patch.0[3].0 as usize + 20] ^= 0xff;
    std::fs::write(kept.path(), &torn).unwrap();
    let (_, again, problem) = kept.open(&scene, true);
    assert_eq!((problem, counted(&seconds(&again, 60))), (None, 45));
    for damaged in [&good[..100], b"", &vec![7; good.len()][..]] {
        std::fs::write(kept.path(), damaged).unwrap();
        let (_, again, problem) = kept.open(&scene, true);
        assert!(problem.is_some_and(|problem| problem.contains("history.damaged")));
        assert_eq!(counted(&seconds(&again, 60)), 0);
        assert_eq!(std::fs::metadata(kept.path()).unwrap().len(), good.len() as u64, "made anew");
    }
}

#[test]
fn without_a_place_to_write_it_goes_on_in_memory_and_catches_up() {
    let (mut scene, kept) = (START, Kept::new());
    std::fs::create_dir(kept.path()).unwrap();
    let (mut keeper, mut history, problem) = kept.open(&scene, true);
    assert!(problem.is_some_and(|problem| problem.contains("only in memory")));
    history.record(&scene.sample());
    history.record(&scene.pass(1000, 5));
    assert!(keeper.write(&history.patch(&keeper)).unwrap_err().contains("only in memory"));
    history.write_all();
    std::fs::remove_dir(kept.path()).unwrap();
    keeper.write(&history.patch(&keeper)).unwrap();
    let (_, again, problem) = kept.open(&scene, true);
    assert_eq!((problem, counted(&seconds(&again, 60))), (None, 5));
}

proptest! {
    /// Whatever clocks do, every packet is counted once while the counters are the same.
    #[test]
    fn nothing_is_counted_twice(
        moments in prop::collection::vec((any::<u32>(), 0..200_000_u64, 0..1000_u64), 1..60),
    ) {
        let (mut scene, mut history) = (START, History::default());
        history.record(&scene.sample());
        let mut all = 0;
        for (wall, ms, packets) in moments {
            scene.pass(ms, packets);
            scene.wall = u64::from(wall) * 1000;
            history.record(&scene.sample());
            all += packets;
        }
        let week = history.series(Duration::from_secs(MAX_AGE), Duration::ZERO, None);
        prop_assert_eq!(counted(&week.points), all);
        prop_assert!(week.points.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
