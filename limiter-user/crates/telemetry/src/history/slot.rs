//! What happened in one second or one minute.

use limiter_common::abi::{Internal, Reason, Tally};

use crate::Sample;

/// Reasons that packets are counted by.
pub const REASONS: usize = Reason::ALL.len();

/// Bytes of a slot as it is stored, without its checksum.
pub(super) const SLOT_BYTES: usize = 8 + 8 + TOTALS_BYTES + 4 * 3;

/// Bytes of [`Totals`].
pub(super) const TOTALS_BYTES: usize = REASONS * 16 + 8;

/// Counters since the maps were made, as far as history is made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) tallies: [Tally; REASONS],
    pub(super) promotions: u64,
}

impl Totals {
    pub(super) fn new(sample: &Sample) -> Self {
        let tallies = Reason::ALL.map(|reason| sample.tally(reason));
        Self { tallies, promotions: sample.internal(Internal::Promotions) }
    }

    /// Whether these can be later counts of the same maps: counters never fall.
    pub(super) fn follow(&self, before: &Self) -> bool {
        let pairs = self.tallies.iter().zip(&before.tallies);
        // All must follow: fresh maps may have overtaken some counters of the former ones, hardly
        // all.
        self.promotions >= before.promotions
            && pairs
                .into_iter()
                .all(|(now, was)| now.packets >= was.packets && now.bytes >= was.bytes)
    }

    /// What was added since `before`, which these [`follow`](Self::follow).
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut added = *self;
        for (tally, was) in added.tallies.iter_mut().zip(&before.tallies) {
            tally.packets -= was.packets;
            tally.bytes -= was.bytes;
        }
        added.promotions -= before.promotions;
        added
    }

    /// The `i`th of `n` equal parts; all of them add up to the whole.
    pub(super) fn part(&self, i: u64, n: u64) -> Self {
        // The first parts get what does not divide, so that no packet is lost to rounding.
        let part = |whole: u64| whole / n + u64::from(i < whole % n);
        let mut parts = *self;
        for tally in &mut parts.tallies {
            *tally = Tally { packets: part(tally.packets), bytes: part(tally.bytes) };
        }
        parts.promotions = part(parts.promotions);
        parts
    }

    fn add(&mut self, more: &Self) {
        for (tally, more) in self.tallies.iter_mut().zip(&more.tallies) {
            tally.packets = tally.packets.saturating_add(more.packets);
            tally.bytes = tally.bytes.saturating_add(more.bytes);
        }
        self.promotions = self.promotions.saturating_add(more.promotions);
    }
}

/// What happened in one second or one minute; 312 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Which second or minute of the history; 0 for none.
    pub(super) number: u64,
    /// The time in which it was counted, ns: longer than the slot after a gap.
    pub(super) covered_ns: u64,
    pub(super) added: Totals,
    /// The most buckets in use.
    pub(super) tracked: u32,
    /// The most distinct sources in a window; NaN if they were not counted.
    pub(super) distinct: f32,
    /// The most noise of a cell, packets.
    pub(super) noise: f32,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            number: 0,
            covered_ns: 0,
            added: Totals::default(),
            tracked: 0,
            // No number, as zero sources is something that can be counted. `max` prefers any
            // number to it.
            distinct: f32::NAN,
            noise: 0.0,
        }
    }
}

impl Slot {
    /// Adds what happened in a part of it, or in another one. The highest of levels is kept, so that a
    /// peak shows however coarse one looks.
    pub(super) fn add(&mut self, more: &Self) {
        self.covered_ns = self.covered_ns.saturating_add(more.covered_ns);
        self.added.add(&more.added);
        self.tracked = self.tracked.max(more.tracked);
        // The other one if one is no number.
        self.distinct = self.distinct.max(more.distinct);
        self.noise = self.noise.max(more.noise);
    }

    /// Packets and bytes by reason, in the order of [`Reason::ALL`].
    pub const fn tallies(&self) -> &[Tally; REASONS] {
        &self.added.tallies
    }

    /// Buckets that sources got.
    pub const fn promotions(&self) -> u64 {
        self.added.promotions
    }

    /// The most buckets in use.
    pub const fn tracked(&self) -> u32 {
        self.tracked
    }

    /// The most distinct sources in a window, if they were counted.
    pub fn distinct(&self) -> Option<f64> {
        (!self.distinct.is_nan()).then(|| self.distinct.into())
    }

    /// The most noise of a cell of the sketch, packets.
    pub fn noise(&self) -> f64 {
        self.noise.into()
    }

    /// The time in which this was counted, s; at least a millisecond.
    pub fn seconds(&self) -> f64 {
        self.covered_ns.max(1_000_000) as f64 / 1e9
    }

    // Field by field: the file outlives the program, and another compiler may order a struct
    // otherwise.
    pub(super) fn to_bytes(self, out: &mut Vec<u8>) {
        put(out, self.number);
        put(out, self.covered_ns);
        totals_to_bytes(&self.added, out);
        out.extend(self.tracked.to_le_bytes());
        out.extend(self.distinct.to_le_bytes());
        out.extend(self.noise.to_le_bytes());
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            number: from.u64()?,
            covered_ns: from.u64()?,
            added: read_totals(from)?,
            tracked: u32::from_le_bytes(from.take()?),
            distinct: f32::from_le_bytes(from.take()?),
            noise: f32::from_le_bytes(from.take()?),
        })
    }
}

/// Reads little-endian numbers one after the other.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

pub(super) fn put(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

pub(super) fn totals_to_bytes(totals: &Totals, out: &mut Vec<u8>) {
    for tally in &totals.tallies {
        put(out, tally.packets);
        put(out, tally.bytes);
    }
    put(out, totals.promotions);
}

pub(super) fn read_totals(from: &mut Reader<'_>) -> Option<Totals> {
    let mut totals = Totals::default();
    for tally in &mut totals.tallies {
        *tally = Tally { packets: from.u64()?, bytes: from.u64()? };
    }
    totals.promotions = from.u64()?;
    Some(totals)
}
