//! The capture that goes on, if any: one at a time, since the kernel program has one filter.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use limiter_common::abi::Internal;

use super::rules::Rules;
use api::error::{Failure, exit};
use api::{CaptureBatch, CaptureStarted, SampleReport};
use model::sample::{PacketSample, SampleFilter};

/// Whoever does not ask for samples for so long is gone.
const LEASE: Duration = Duration::from_secs(2);

/// Samples that are fetched at once: some hundred microseconds.
const BATCH: usize = 500;

/// The capture that goes on, if any.
#[derive(Default)]
pub struct Captures {
    current: Option<Capture>,
    /// How many there have been.
    count: u64,
}

/// A capture.
struct Capture {
    id: u64,
    asked: Instant,
    /// Matched and lost when it began.
    before: [u64; 2],
    interfaces: HashMap<u32, String>,
}

impl Captures {
    /// Begins to capture. Whoever asked has to fetch the samples.
    ///
    /// # Errors
    /// If somebody else captures.
    pub fn start(
        &mut self,
        rules: &mut Rules,
        filter: &SampleFilter,
    ) -> Result<CaptureStarted, Failure> {
        self.end_forgotten(rules);
        if self.current.is_some() {
            return Err(Failure::new(exit::NEGATIVE, "somebody else captures at present")
                .hint("one capture is possible at a time: try again when it is over"));
        }
        let before = sampled(rules)?;
        rules.plane.start_sampling(filter);
        self.count += 1;
        let interfaces = rules.plane.attachments().into_iter().map(|it| (it.ifindex, it.name));
        self.current = Some(Capture {
            id: self.count,
            asked: Instant::now(),
            before,
            interfaces: interfaces.collect(),
        });
        tracing::info!("a capture has begun");
        Ok(CaptureStarted { id: self.count })
    }

    /// The samples that have come.
    ///
    /// # Errors
    /// If that capture is over.
    pub fn samples(&mut self, rules: &mut Rules, id: u64) -> Result<CaptureBatch, Failure> {
        let mut samples = Vec::new();
        let [matched, lost] = self.fetch(rules, id, &mut |sample, interface| {
            samples.push(SampleReport::new(sample, interface));
        })?;
        Ok(CaptureBatch { samples, matched, lost })
    }

    /// Visits the samples that have come, and where each packet came in. Returns how many packets have
    /// matched since the capture began, and how many samples were lost.
    ///
    /// # Errors
    /// If that capture is over.
    pub(super) fn fetch(
        &mut self,
        rules: &mut Rules,
        id: u64,
        visit: &mut dyn FnMut(PacketSample, String),
    ) -> Result<[u64; 2], Failure> {
        let [matched, lost] = sampled(rules)?;
        let Some(capture) = self.current.as_mut().filter(|capture| capture.id == id) else {
            return Err(Failure::new(exit::NEGATIVE, "the capture is over")
                .hint("whoever captures has to fetch the samples every second"));
        };
        capture.asked = Instant::now();
        rules.plane.samples(BATCH, &mut |sample| {
            let known = capture.interfaces.get(&sample.ifindex);
            let name = known.cloned().unwrap_or_else(|| format!("if{}", sample.ifindex));
            visit(sample, name);
        });
        let [matched_before, lost_before] = capture.before;
        Ok([matched.saturating_sub(matched_before), lost.saturating_sub(lost_before)])
    }

    /// Ends a capture, if it is still that one. What has come last.
    ///
    /// # Errors
    /// As [`Captures::samples`].
    pub fn stop(&mut self, rules: &mut Rules, id: u64) -> Result<CaptureBatch, Failure> {
        let last = self.samples(rules, id)?;
        self.end(rules);
        Ok(last)
    }

    /// Ends a capture that nobody fetches the samples of.
    pub(super) fn end_forgotten(&mut self, rules: &mut Rules) {
        if self.current.as_ref().is_some_and(|capture| capture.asked.elapsed() > LEASE) {
            self.end(rules);
        }
    }

    fn end(&mut self, rules: &mut Rules) {
        rules.plane.stop_sampling();
        self.current = None;
        tracing::info!("the capture is over");
    }
}

/// Packets that matched, and samples that were lost, since the maps were made.
fn sampled(rules: &Rules) -> Result<[u64; 2], Failure> {
    let counters = rules.plane.counters()?;
    let internal = |it: Internal| counters.internal[it as usize];
    Ok([Internal::SamplesMatched, Internal::SamplesLost].map(internal))
}
