//! What the sketch says of a packet's source.

use super::State;
use super::lookup::Arrival;
use crate::abi::{Config, Internal, TOTAL_STEP, Tier};
use crate::gate::{self, MIN_FRAME};
use crate::gcra::{Ticks, ticks};
use crate::share::CostMultiplier;
use crate::sketch::{Counted, Estimate, MAX_DEPTH, Shape, Total, count, touch};

/// What a packet finds when it is added to the sketch.
pub(super) struct Added {
    /// Whether its source is below the gate.
    pub(super) below: bool,
    /// Whether the packet is the first of its source in this epoch; never said of one that is not.
    pub(super) first: bool,
}

/// Adds the packet to the sketch, and looks at the estimate with it as [`gate::passes`] does.
#[inline(always)]
pub(super) fn add<S: State>(
    state: &S,
    config: &Config,
    packet: &Arrival,
    gate: u32,
) -> Option<Added> {
    let now = state.window().position(packet.wall_ns);
    let shape = state.shape();
    // The estimate is the least over all rows, so it is below if any is, and the source is new if it is to any
    // row. Which row that is cannot be foreseen, hence no branch for each: the sign of the differences tells.
    let (mut signs, mut fresh) = (0, 0);
    let mut row = 0;
    while row < MAX_DEPTH && row < shape.depth {
        let cell = state.cell(shape.index(packet.hash, row))?;
        let Counted { cell, fresh: here } = count(cell, now, Shape::bit(packet.hash, row));
        signs |= i64::from(cell.estimate(now)).wrapping_sub(i64::from(gate));
        fresh |= here;
        row += 1;
    }
    // By steps: one word that all CPUs add to for each packet would cost more than the sketch.
    if state.note(Internal::SketchAdds) & (TOTAL_STEP - 1) == 0 {
        Total::add(&config.sketch_total, now, TOTAL_STEP);
    }
    // Negative where the gate is 2 at least.
    signs |= fresh & 1i64.wrapping_sub(i64::from(gate));
    Some(Added { below: signs < 0, first: fresh < 0 })
}

/// The estimate for a source whose packet has been added.
#[inline(always)]
pub(super) fn estimate<S: State>(state: &S, packet: &Arrival) -> Option<Estimate> {
    let now = state.window().position(packet.wall_ns);
    let shape = state.shape();
    let mut estimate = Estimate::NOTHING;
    let mut row = 0;
    while row < MAX_DEPTH && row < shape.depth {
        let cell = touch(state.cell(shape.index(packet.hash, row))?, now);
        estimate = estimate.and(cell, now);
        row += 1;
    }
    Some(estimate)
}

/// What a source provably owes when it gets a bucket.
pub(super) struct Owed {
    /// Packets before the one at hand.
    packets: u64,
    /// How long ago the first of them can have come, ns.
    pub(super) age_ns: u64,
}

impl Owed {
    /// The debt that a tier starts with.
    #[inline(always)]
    pub(super) fn debt(&self, tier: &Tier, price: CostMultiplier) -> Ticks {
        self.cost(tier, price).saturating_sub(ticks(self.age_ns))
    }

    /// What the packets cost that the source has provably sent before the one at hand.
    #[inline(always)]
    pub(super) fn cost(&self, tier: &Tier, price: CostMultiplier) -> u64 {
        self.packets * price.cost(tier.cost(MIN_FRAME))
    }
}

#[inline(always)]
pub(super) fn owed<S: State>(
    state: &S,
    config: &Config,
    packet: &Arrival,
    estimate: Estimate,
    now_ns: u64,
) -> Owed {
    let window = state.window();
    let now = window.position(packet.wall_ns);
    let total = Total::at(&config.sketch_total, now).current();
    let cpus = state.cpus();
    let noise = gate::noise(total, cpus.wrapping_mul(TOTAL_STEP as u32), state.shape());
    // A packet that another CPU has counted but not judged yet will be charged there.
    let others = noise.saturating_add(cpus.saturating_sub(1));
    let age_ns =
        window.since(estimate.first, packet.wall_ns) + now_ns.saturating_sub(packet.coarse_ns);
    Owed { packets: gate::owed(estimate, others), age_ns }
}
