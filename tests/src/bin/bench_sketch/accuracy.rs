//! How well and how fast a contender counts a stream.

use std::{collections::HashSet, time::Instant};

use limiter_common::sketch::MAX_COUNT;
use serde::Serialize;
use tests::machine::median;

use crate::{
    contenders::{Contender, CountMin, FrequentItems, Limiter, Wanted},
    stream::{PACKETS, Stream, TOP},
};

/// How often each is timed.
const ROUNDS: usize = 3;

/// What became of one contender, stream and size.
#[derive(Debug, Serialize)]
pub(crate) struct Accuracy {
    pub(crate) contender: &'static str,
    pub(crate) stream: &'static str,
    pub(crate) epsilon: f64,
    pub(crate) delta: f64,
    pub(crate) width: u32,
    pub(crate) depth: u32,
    pub(crate) bytes: usize,
    /// Share of the heaviest sources that it names among its heaviest.
    pub(crate) recall: f64,
    /// Share of those it names that belong there.
    pub(crate) precision: f64,
    /// Average relative error of the heaviest sources' counts.
    pub(crate) top_error: f64,
    /// The same of all sources.
    pub(crate) error: f64,
    /// Share of sources whose error is over ε·N.
    pub(crate) over_bound: f64,
    /// Whether that is at most δ.
    pub(crate) bound_met: bool,
    /// Sources that sent more than a cell of the limiter's sketch counts.
    pub(crate) saturated: usize,
    /// Median time to count a packet, hashing included.
    pub(crate) ns_per_add: f64,
    /// Every time that was taken.
    pub(crate) rounds: Vec<f64>,
}

/// Measures all contenders on `stream`, their rounds interleaved.
pub(crate) fn measure(stream: &Stream, wanted: Wanted) -> [Accuracy; 3] {
    let mut times = [const { Vec::new() }; 3];
    let mut counted = None;
    for _ in 0..ROUNDS {
        // New ones each time, as counts of an earlier round would be in their estimates.
        let (limiter, limiter_ns) = count::<Limiter>(stream, wanted);
        let (count_min, count_min_ns) = count::<CountMin>(stream, wanted);
        let (frequent, frequent_ns) = count::<FrequentItems>(stream, wanted);
        for (all, ns) in times.iter_mut().zip([limiter_ns, count_min_ns, frequent_ns]) {
            all.push(ns);
        }
        counted = Some((limiter, count_min, frequent));
    }
    let (limiter, count_min, frequent) = counted.expect("at least one round");
    let [limiter_ns, count_min_ns, frequent_ns] = times;
    [
        judge(&limiter, stream, wanted, limiter_ns),
        judge(&count_min, stream, wanted, count_min_ns),
        judge(&frequent, stream, wanted, frequent_ns),
    ]
}

fn count<C: Contender>(stream: &Stream, wanted: Wanted) -> (C, f64) {
    let mut contender = C::new(wanted);
    let start = Instant::now();
    for &source in &stream.packets {
        contender.add(source);
    }
    let ns = start.elapsed().as_nanos() as f64 / PACKETS as f64;
    (contender, ns)
}

fn judge<C: Contender>(
    contender: &C,
    stream: &Stream,
    wanted: Wanted,
    rounds: Vec<f64>,
) -> Accuracy {
    let shape = wanted.shape();
    let bound = wanted.epsilon * PACKETS as f64;
    let mut over = 0usize;
    let errors: Vec<f64> = stream
        .exact
        .iter()
        .map(|&(source, exact)| {
            let error = contender.estimate(source).abs_diff(exact) as f64;
            over += usize::from(error > bound);
            error / exact as f64
        })
        .collect();
    let over_bound = over as f64 / errors.len() as f64;
    let named = contender.heaviest(stream, TOP);
    let (recall, precision) = found(stream, &named);
    // Told apart: these are underestimated by design, and the error would be blamed on the hash.
    let saturated = stream.exact.iter().filter(|&&(_, count)| count > u64::from(MAX_COUNT));
    Accuracy {
        contender: C::NAME,
        stream: stream.name,
        epsilon: wanted.epsilon,
        delta: wanted.delta,
        width: shape.width(),
        depth: shape.depth,
        bytes: contender.bytes(),
        recall,
        precision,
        top_error: mean(&errors[..TOP]),
        error: mean(&errors),
        over_bound,
        bound_met: over_bound <= wanted.delta,
        saturated: saturated.count(),
        ns_per_add: median(&rounds),
        rounds,
    }
}

/// Recall and precision of `named`: right is whoever sent as much as the last of the heaviest.
pub(crate) fn found(stream: &Stream, named: &[u32]) -> (f64, f64) {
    let threshold = stream.threshold();
    let heavy = stream.exact.iter().take_while(|&&(_, count)| count >= threshold);
    let heavy: HashSet<u32> = heavy.map(|&(source, _)| source).collect();
    let right = named.iter().filter(|&source| heavy.contains(source)).count() as f64;
    (right / TOP as f64, right / named.len().max(1) as f64)
}

/// The mean of `values`, 0 without any.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
