use super::*;
use crate::wire::{KEY, Key};

const ME: HostId = HostId(1);
const OTHER: HostId = HostId(2);
const CLUSTER: u16 = 9;
const VERSION: u8 = Versions::THESE.newest;

fn ring() -> KeyRing {
    KeyRing::new(Key::new([7; KEY]))
}

fn epoch(second: u64) -> Epoch {
    Epoch::starting(None, second, second as u32 * 1000 + 1)
}

struct Pair {
    sealer: Sealer,
    opener: Opener,
}

impl Pair {
    fn new() -> Self {
        Self {
            sealer: Sealer::new(OTHER, epoch(50), || 7),
            opener: Opener::new(ME, epoch(60), Versions::THESE),
        }
    }

    fn seal(&mut self, content: &[u8]) -> Vec<u8> {
        self.sealer.seal(&ring(), VERSION, CLUSTER, epoch(60).short(), content).unwrap()
    }

    /// What of it is heard.
    fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, Rejection> {
        let mut frame = frame.to_vec();
        self.opener.open(&ring(), &mut frame).map(|opened| opened.content.to_vec())
    }
}

#[test]
fn a_frame_is_opened_once() {
    let mut pair = Pair::new();
    let frames: Vec<_> = (0..3000_u32).map(|number| pair.seal(&number.to_be_bytes())).collect();
    assert!(
        !frames[1].windows(4).any(|bytes| bytes == [0, 0, 0, 1] && bytes == &frames[1][34..38])
    );
    for number in [5, 3, 2999, 2998] {
        assert_eq!(pair.open(&frames[number]), Ok((number as u32).to_be_bytes().to_vec()));
        assert_eq!(pair.open(&frames[number]), Err(Rejection::Replayed));
    }
    // Too far behind to know whether it has come.
    assert_eq!(pair.open(&frames[4]), Err(Rejection::Replayed));
}

#[test]
fn any_flipped_bit_is_noticed_and_changes_nothing() {
    let mut pair = Pair::new();
    let frame = pair.seal(b"a whole right");
    let before = pair.opener.clone();
    for bit in 0..frame.len() * 8 {
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(pair.open(&changed).is_err(), "{bit}");
        assert_eq!(pair.opener, before);
    }
    assert!(pair.open(&frame).is_ok());
    assert_ne!(pair.opener, before);
}

#[test]
fn what_was_recorded_before_a_restart_is_not_listened_to_after_it() {
    let mut pair = Pair::new();
    let recorded = pair.seal(b"yours for a second");
    // This host starts again.
    pair.opener = Opener::new(ME, epoch(70), Versions::THESE);
    let before = pair.opener.clone();
    let mut frame = recorded;
    let opened = pair.opener.open(&ring(), &mut frame).unwrap();
    assert_eq!(opened.to, Recipient::Another);
    assert_eq!(pair.opener, before);
}

#[test]
fn an_earlier_run_of_a_sender_is_not_listened_to_after_a_later_one() {
    let mut pair = Pair::new();
    let late = pair.seal(b"late");
    let mut runs: Vec<_> = (51..60).map(|second| Sealer::new(OTHER, epoch(second), || 7)).collect();
    let to = epoch(60).short();
    let frame = runs[0].seal(&ring(), VERSION, CLUSTER, to, b"later").unwrap();
    assert!(pair.open(&frame).is_ok());
    assert_eq!(pair.open(&late), Err(Rejection::Old));
    // Where two hosts have one ledger, the one that is heard of all the time is not forgotten for the
    // many runs of the other one.
    for number in 1..runs.len() {
        let frame = runs[number].seal(&ring(), VERSION, CLUSTER, to, b"second host").unwrap();
        assert!(pair.open(&frame).is_ok());
        let frame = runs[0].seal(&ring(), VERSION, CLUSTER, to, b"first host").unwrap();
        assert!(pair.open(&frame).is_ok());
    }
    let frame = runs[1].seal(&ring(), VERSION, CLUSTER, to, b"forgotten").unwrap();
    assert_eq!(pair.open(&frame), Err(Rejection::Old));
}

#[test]
fn what_is_for_anybody_leaves_no_trace() {
    let mut pair = Pair::new();
    let before = pair.opener.clone();
    let frame = pair.sealer.seal(&ring(), VERSION, 0, 0, b"hello").unwrap();
    for _ in 0..2 {
        let mut frame = frame.clone();
        let opened = pair.opener.open(&ring(), &mut frame).unwrap();
        assert_eq!(
            (opened.to, opened.cluster, opened.content),
            (Recipient::Anybody, 0, &b"hello"[..])
        );
    }
    assert_eq!(pair.opener, before);
}

#[test]
fn other_keys_and_this_host_itself_are_told_apart() {
    let mut pair = Pair::new();
    let wrong = KeyRing::new(Key::new([8; KEY]));
    let to = epoch(60).short();
    let frame = pair.sealer.seal(&wrong, VERSION, CLUSTER, to, b"x").unwrap();
    assert_eq!(pair.open(&frame), Err(Rejection::Key));
    let frame = Sealer::new(ME, epoch(60), || 7).seal(&ring(), VERSION, CLUSTER, to, b"x").unwrap();
    assert_eq!(pair.open(&frame), Err(Rejection::Own));
}

#[test]
fn keys_are_changed_without_a_gap() {
    let [old, new] = [1, 2].map(|byte| Key::new([byte; KEY]));
    let to = epoch(60).short();
    let hears = |sealing: &KeyRing, opening: &KeyRing, expected: bool| {
        let mut pair = Pair::new();
        let mut frame = pair.sealer.seal(sealing, VERSION, CLUSTER, to, b"x").unwrap();
        assert_eq!(pair.opener.open(opening, &mut frame).is_ok(), expected);
    };
    let before = KeyRing::new(old);
    let mut accepting = before.clone();
    accepting.accept(new);
    let mut rotated = accepting.clone();
    rotated.rotate();
    let mut after = rotated.clone();
    after.retire();
    // Two steps that follow each other understand each other.
    for steps in [&before, &accepting, &rotated, &after].windows(2) {
        hears(steps[0], steps[1], true);
        hears(steps[1], steps[0], true);
    }
    hears(&before, &after, false);
}

#[test]
fn a_number_is_never_used_twice() {
    let mut sealer = Sealer::new(ME, epoch(1), || 7);
    sealer.number = MAX_NUMBER - 1;
    assert!(sealer.seal(&ring(), VERSION, 0, 0, b"last").is_some());
    assert!(sealer.seal(&ring(), VERSION, 0, 0, b"none").is_none());
}

/// Key streams that are the same would give away what both frames say, and with that the key of their seals.
#[test]
fn a_machine_that_is_cloned_repeats_no_key_stream() {
    let frame = |salt| {
        let mut sealer = Sealer::new(ME, epoch(1), salt);
        sealer.seal(&ring(), VERSION, CLUSTER, 0, &[0; 64]).unwrap().split_off(Header::LENGTH)
    };
    assert_ne!(frame(|| 1), frame(|| 2));
    assert_eq!(frame(|| 1), frame(|| 1));
}
