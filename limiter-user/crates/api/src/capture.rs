//! Captures of samples.

use std::io::{self, Write};
use std::time::SystemTime;

use limiter_common::abi::Reason;
use limiter_common::sampling::MAX_BYTES;
use serde::{Deserialize, Serialize};

use super::Print;
use crate::error::{Failure, exit};
use model::sample::{PacketSample, SampleFilter};

/// `POST /v1/capture`: which samples are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Of dropped packets.
    #[serde(default)]
    pub dropped: bool,
    /// Of packets that passed. Of both if neither is asked for.
    #[serde(default)]
    pub passed: bool,
    /// Of packets that met these reasons, as `stats` calls them; all if none is named.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Of packets from this address or prefix.
    #[serde(default)]
    pub source: Option<String>,
    /// Samples in a second at the most.
    pub rate: u32,
    /// Bytes of each.
    pub snaplen: u32,
}

impl CaptureRequest {
    /// The most samples in a second.
    pub const MAX_RATE: u32 = 10_000;

    /// What it asks for.
    ///
    /// # Errors
    /// An unknown reason, a wrong address, reasons that no such packet can meet, or a number out of range.
    pub fn filter(&self) -> Result<SampleFilter, Failure> {
        let usage = |message: String| Failure::new(exit::USAGE, message);
        for name in &self.reasons {
            if !Reason::ALL.iter().any(|reason| reason.name() == name) {
                return Err(usage(format!("there is no reason {name:?}"))
                    .hint(format!("the reasons are {}", names(&Reason::ALL))));
            }
        }
        // Both, or neither said: then all packets are meant.
        let either = self.dropped == self.passed;
        let verdict = |reason: &Reason| either || reason.passes() == self.passed;
        let named = |reason: &Reason| {
            self.reasons.is_empty() || self.reasons.iter().any(|name| name == reason.name())
        };
        // The kernel's filter has a bit for each reason and none for a verdict, so that becomes reasons.
        let of_verdict: Vec<_> = Reason::ALL.into_iter().filter(verdict).collect();
        let reasons: Vec<_> = of_verdict.iter().copied().filter(named).collect();
        // An empty mask would capture nothing for ever. The client could not tell that from
        // silence on the wire.
        if reasons.is_empty() {
            let which = if self.passed { "passes" } else { "is dropped" };
            return Err(usage(format!("no packet {which} for {}", self.reasons.join(" or ")))
                .hint(format!("of those packets, the reasons are {}", names(&of_verdict))));
        }
        let source = self.source.as_deref().map(|text| {
            let single = text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from).ok();
            // Cut to its length: the kernel compares masked addresses, and host bits would never
            // match.
            single.or_else(|| text.parse::<ipnet::IpNet>().ok()).map(|net| net.trunc()).ok_or_else(
                || {
                    usage(format!("{text:?} is neither an address nor a prefix"))
                        .hint("write it like 192.0.2.1, 192.0.2.0/24 or 2001:db8::/48")
                },
            )
        });
        for (what, value, most) in
            [("--rate", self.rate, Self::MAX_RATE), ("--snaplen", self.snaplen, MAX_BYTES as u32)]
        {
            if !(1..=most).contains(&value) {
                return Err(usage(format!("{what} {value} is out of range"))
                    .hint(format!("give it 1 to {most}")));
            }
        }
        let (rate, snaplen) = (self.rate, self.snaplen);
        Ok(SampleFilter { reasons, source: source.transpose()?, rate, snaplen, share: 1.0 })
    }
}

fn names(reasons: &[Reason]) -> String {
    let mut names: Vec<_> = reasons.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    // A name may stand for a reason to pass and one to drop.
    names.dedup();
    names.join(", ")
}

/// A capture that has begun. It ends when nobody asks for its samples for two seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// Its number, which `POST /v1/capture/ID` takes.
    pub id: u64,
}

/// A sample as a packet of a pcapng file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleReport {
    /// When the packet came.
    pub time: SystemTime,
    /// The interface that it came by.
    pub interface: String,
    /// `pass` or `drop`, the reason, the source and its limit, as far as they are known.
    pub comment: String,
    /// Whether its interface has no Ethernet: it starts with the IP header.
    pub starts_at_ip: bool,
    /// How long it was, bytes.
    pub length: u32,
    /// Its first bytes.
    pub data: Vec<u8>,
}

impl SampleReport {
    /// Of a packet that came by `interface`.
    pub fn new(sample: PacketSample, interface: String) -> Self {
        let verdict = if sample.reason.passes() { "pass" } else { "drop" };
        let mut comment = format!("{verdict} {}", sample.reason.name());
        if let Some(source) = sample.source {
            // `key=value`, as it becomes the comment of a packet in the pcapng file, which
            // Wireshark can search.
            comment += &format!(" source={source}");
        }
        if let Some(limit) = &sample.limit {
            comment += &format!(" limit={} burst={}", limit.rate, limit.tier().burst_text());
            if !limit.algorithm.is_bucket() {
                comment += &format!(" algorithm={}", limit.algorithm.name());
            }
        }
        let PacketSample { time, length, data, starts_at_ip, .. } = sample;
        Self { time, interface, comment, starts_at_ip, length, data }
    }
}

/// `POST /v1/capture/ID`: samples that have come since it was asked for the last time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureBatch {
    /// The samples.
    pub samples: Vec<SampleReport>,
    /// Packets that matched since the capture began, whether or not a sample was taken.
    pub matched: u64,
    /// Samples that were lost since then, because they were not fetched in time.
    pub lost: u64,
}

/// `capture`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Where the samples are.
    pub file: String,
    /// How many there are.
    pub samples: u64,
    /// Packets that matched, whether or not a sample was taken.
    pub matched: u64,
    /// Samples that were lost, because there was no room for them.
    pub lost: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Print for CaptureReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { file, samples, matched, lost, seconds } = self;
        if *samples == 0 {
            return writeln!(out, "no packet matched in {seconds:.1} s");
        }
        writeln!(
            out,
            "{samples} samples of {matched} matching packets in {seconds:.1} s, {lost} lost, in {file}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> CaptureRequest {
        CaptureRequest {
            dropped: false,
            passed: false,
            reasons: Vec::new(),
            source: None,
            rate: 1000,
            snaplen: 256,
        }
    }

    #[test]
    fn reasons_are_chosen_by_name_and_verdict() {
        assert_eq!(request().filter().unwrap().reasons, Reason::ALL);
        let dropped = CaptureRequest { dropped: true, ..request() }.filter().unwrap();
        assert!(dropped.reasons.iter().all(|reason| !reason.passes()));
        let full = CaptureRequest { dropped: true, reasons: vec!["set_full".into()], ..request() };
        assert_eq!(full.filter().unwrap().reasons, [Reason::DroppedSetFull]);
        let none = CaptureRequest { passed: true, reasons: vec!["denied".into()], ..request() };
        let failure = none.filter().unwrap_err();
        assert!(failure.hint.unwrap().contains("conforming"), "{}", failure.message);
    }

    #[test]
    fn bad_input_is_explained() {
        let bad = CaptureRequest { reasons: vec!["overlimit".into()], ..request() };
        let failure = bad.filter().unwrap_err();
        assert!(failure.code == exit::USAGE && failure.message.contains("overlimit"));
        assert!(failure.hint.unwrap().contains("over_limit, over_peer_budget, over_shared_limit"));
        let bad = CaptureRequest { source: Some("192.0.2.300".into()), ..request() };
        assert!(bad.filter().unwrap_err().message.contains("192.0.2.300"));
        for bad in
            [CaptureRequest { rate: 0, ..request() }, CaptureRequest { snaplen: 257, ..request() }]
        {
            assert!(bad.filter().unwrap_err().message.contains("out of range"));
        }
        let good = CaptureRequest { source: Some("192.0.2.7/24".into()), ..request() };
        assert_eq!(good.filter().unwrap().source, Some("192.0.2.0/24".parse().unwrap()));
    }
}
