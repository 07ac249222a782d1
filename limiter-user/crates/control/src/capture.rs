//! The capture that goes on, if any: one at a time, since the kernel program has one filter.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use limiter_common::abi::Internal;

use super::core::{Core, internal_of};
use api::error::{Failure, exit};
use api::{CaptureBatch, CaptureStarted, SampleReport};
use model::sample::{PacketSample, SampleFilter};

/// Whoever does not ask for samples for so long is gone.
const LEASE: Duration = Duration::from_secs(2);

/// Samples that are fetched at once: some hundred microseconds.
const BATCH: usize = 500;

/// A capture.
pub(super) struct Capture {
    id: u64,
    asked: Instant,
    /// Matched and lost when it began.
    before: [u64; 2],
    interfaces: HashMap<u32, String>,
}

impl Core {
    /// Begins to capture. Whoever asked has to fetch the samples.
    ///
    /// # Errors
    /// If somebody else captures, or the kernel cannot.
    pub fn start_capture(&mut self, filter: &SampleFilter) -> Result<CaptureStarted, Failure> {
        self.end_forgotten_capture();
        if self.capture.is_some() {
            return Err(Failure::new(exit::NEGATIVE, "somebody else captures at present")
                .hint("one capture is possible at a time: try again when it is over"));
        }
        let before = self.sampled()?;
        self.plane.start_sampling(filter)?;
        self.captures += 1;
        let interfaces = self.plane.attachments().into_iter().map(|it| (it.ifindex, it.name));
        self.capture = Some(Capture {
            id: self.captures,
            asked: Instant::now(),
            before,
            interfaces: interfaces.collect(),
        });
        tracing::info!("a capture has begun");
        Ok(CaptureStarted { id: self.captures })
    }

    /// The samples that have come.
    ///
    /// # Errors
    /// If that capture is over.
    pub fn captured(&mut self, id: u64) -> Result<CaptureBatch, Failure> {
        let mut samples = Vec::new();
        let [matched, lost] = self.fetch_samples(id, &mut |sample, interface| {
            samples.push(SampleReport::new(sample, interface));
        })?;
        Ok(CaptureBatch { samples, matched, lost })
    }

    /// Visits the samples that have come, and where each packet came in. Returns how many packets have
    /// matched since the capture began, and how many samples were lost.
    ///
    /// # Errors
    /// If that capture is over.
    pub(super) fn fetch_samples(
        &mut self,
        id: u64,
        visit: &mut dyn FnMut(PacketSample, String),
    ) -> Result<[u64; 2], Failure> {
        let [matched, lost] = self.sampled()?;
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.id == id) else {
            return Err(Failure::new(exit::NEGATIVE, "the capture is over")
                .hint("whoever captures has to fetch the samples every second"));
        };
        capture.asked = Instant::now();
        self.plane.samples(BATCH, &mut |sample| {
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
    /// As [`Core::captured`].
    pub fn stop_capture(&mut self, id: u64) -> Result<CaptureBatch, Failure> {
        let last = self.captured(id)?;
        self.end_capture();
        Ok(last)
    }

    /// Ends a capture that nobody fetches the samples of.
    pub(super) fn end_forgotten_capture(&mut self) {
        if self.capture.as_ref().is_some_and(|capture| capture.asked.elapsed() > LEASE) {
            self.end_capture();
        }
    }

    fn end_capture(&mut self) {
        self.plane.stop_sampling();
        self.capture = None;
        tracing::info!("the capture is over");
    }

    /// Packets that matched, and samples that were lost, since the maps were made.
    fn sampled(&self) -> Result<[u64; 2], Failure> {
        let counters = self.plane.counters()?;
        Ok([Internal::SamplesMatched, Internal::SamplesLost].map(|it| internal_of(&counters, it)))
    }
}
