//! Sketches that were saved.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Print, percent, text};
use model::Distinct;
use model::digest::Percentiles;
use telemetry::saved_sketch::{Header, SavedSketch};

/// Rates of sources are of about this time when a sketch is saved.
pub const SKETCH_RATES: Duration = Duration::from_secs(1);

/// `POST /v1/sketch/cells`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SketchCells {
    /// What the hash's key is known by.
    pub key: String,
    /// The cells of the source, one in each row, by their place among all.
    pub cells: Vec<u32>,
}

/// `sketch save`, `sketch merge` and `sketch show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SketchReport {
    /// What the file says in words.
    #[serde(flatten)]
    pub header: Header,
    /// When the earliest of them begins to count packets, RFC 3339.
    pub from: String,
    /// When the latest of them ends.
    pub to: String,
    /// All packets that its Count-Min Sketch has counted.
    pub packets: u64,
    /// What an estimate is too high by at the most, packets, with a probability of 1 − `delta`.
    pub too_high_by: u64,
    /// The probability that it is more.
    pub delta: f64,
    /// Its HyperLogLog.
    pub distinct: Distinct,
    /// Sources with a bucket that have sent something.
    pub sources: u64,
    /// Percentiles of their rates.
    pub packets_per_second: Option<Percentiles>,
    /// How many packets a source has sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<SketchEstimate>,
}

/// How many packets a source has sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SketchEstimate {
    /// The source.
    pub source: String,
    /// Never fewer than it has sent.
    pub packets: u64,
    /// Never more than it has sent, with a probability of 1 − δ.
    pub at_least: u64,
}

impl SketchReport {
    /// Tells a sketch, and the packets of a source in it.
    pub fn new(sketch: &SavedSketch, estimate: Option<(String, u64)>) -> Self {
        let header = sketch.header.clone();
        let moment = |ms| text::time(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        let (packets, (epsilon, delta)) = (sketch.packets(), sketch.error());
        let too_high_by = (epsilon * packets as f64).ceil() as u64;
        let (sources, packets_per_second) = sketch.rates();
        Self {
            from: moment(header.from_ms),
            to: moment(header.to_ms),
            header,
            packets,
            too_high_by,
            delta,
            distinct: sketch.distinct(),
            sources,
            packets_per_second,
            estimate: estimate.map(|(source, packets)| {
                let at_least = packets.saturating_sub(too_high_by);
                SketchEstimate { source, packets, at_least }
            }),
        }
    }
}

impl Print for SketchReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Header {
            key, ipv4_prefix, ipv6_prefix, depth, width, window_ns, registers, saves, ..
        } = &self.header;
        let saves = if *saves == 1 { "1 save".into() } else { format!("{saves} saves") };
        writeln!(out, "{saves}, {} to {}", self.from, self.to)?;
        writeln!(out, "key {key}, a source is an IPv4 /{ipv4_prefix} or an IPv6 /{ipv6_prefix}\n")?;
        let mut table = text::table(&["STRUCTURE", "SIZE", "ESTIMATES"], 3);
        let (certain, window) = (percent(1.0 - self.delta), Duration::from_nanos(*window_ns));
        let packets = format!(
            "{} packets within {window:.0?}; of a source {} too many at the most, for {certain} of sources",
            self.packets, self.too_high_by
        );
        table.add_row(["Count-Min", &format!("{depth} × {width}"), &packets]);
        table.add_row(["HyperLogLog", &registers.to_string(), &self.distinct.summary()]);
        let rates = match &self.packets_per_second {
            Some(Percentiles { p50, p90, p99, p999, max }) => format!(
                "packets/s of {} sources: p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1}",
                self.sources
            ),
            None => "no source with a bucket has sent".into(),
        };
        table.add_row(["t-digest", "", &rates]);
        writeln!(out, "{}", table.trim_fmt())?;
        if let Some(SketchEstimate { source, packets, at_least }) = &self.estimate {
            writeln!(
                out,
                "\n{source}: {packets} packets at the most, and at least {at_least} in {certain} of cases"
            )?;
        }
        Ok(())
    }
}
