//! `limiter capture`

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use hyper::Method;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use super::output::Output;
use api::client::Client;
use api::error::{Failure, exit};
use api::{CaptureBatch, CaptureReport, CaptureRequest, CaptureStarted, SampleReport};
use model::chain;
use model::units::parse_duration;

/// How long to wait for more samples.
// Well below the two seconds after which the daemon ends a capture that nobody fetches.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct CaptureArgs {
    /// Packets that are dropped
    #[arg(long)]
    dropped: bool,
    /// Packets that pass
    #[arg(long)]
    passed: bool,
    /// Packets that meet this reason, as `limiter stats` calls it; may be repeated
    #[arg(long = "reason", value_name = "REASON")]
    reasons: Vec<String>,
    /// Packets from this address or prefix
    #[arg(long, value_name = "CIDR")]
    source: Option<String>,
    /// End after so many samples
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1000)]
    count: u64,
    /// Where to write them, as pcapng with the reason in each packet's comment; - is standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: PathBuf,
    /// Bytes of each packet, 256 at the most
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    snaplen: u32,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    #[arg(default_value = "30s")]
    lasts: Duration,
    /// Samples in a second at the most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rate: u32,
}

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    arguments: CaptureArgs,
) -> Result<u8, Failure> {
    let CaptureArgs { dropped, passed, reasons, source, count, file, snaplen, lasts, rate } =
        arguments;
    let to_stdout = file.as_os_str() == "-";
    if to_stdout && output.is_json() {
        return Err(Failure::new(exit::USAGE, "--json and -w - both write to standard output")
            .hint("name a file, or leave --json out"));
    }
    let request = CaptureRequest { dropped, passed, reasons, source, rate, snaplen };
    // What cannot be captured is refused before there is a file.
    request.filter()?;
    let started: CaptureStarted = client.send(Method::POST, "/v1/capture", &request).await?;
    let path = format!("/v1/capture/{}", started.id);
    let start = Instant::now();
    let most = Most { samples: count, lasts };
    // The file after the start: a capture that the daemon refuses must not truncate what is there.
    let written = async {
        let mut file = SampleFile::open(&file, snaplen)?;
        fetch(client, &path, most, &mut file).await
    };
    let (samples, last) = match written.await {
        Ok(written) => written,
        Err(failure) => {
            // It would end by itself, but not at once: whoever captures next would be refused until then.
            let _: Result<CaptureBatch, _> = client.delete(&path).await;
            return Err(failure);
        }
    };
    if to_stdout {
        // stdout has the packets.
        tracing::info!("{samples} samples of {} matching packets", last.matched);
    } else {
        output.print(&CaptureReport {
            file: file.display().to_string(),
            samples,
            matched: last.matched,
            lost: last.lost,
            seconds: start.elapsed().as_secs_f64(),
        })?;
    }
    // For scripts: no packet of that kind is an answer, too.
    Ok(if samples == 0 { exit::NEGATIVE } else { exit::OK })
}

/// When a capture is over.
#[derive(Clone, Copy)]
struct Most {
    samples: u64,
    lasts: Duration,
}

/// Writes the samples of a capture until that is over: how many, and the last batch, which has the final counts.
async fn fetch(
    client: &Client,
    path: &str,
    most: Most,
    file: &mut SampleFile<'_>,
) -> Result<(u64, CaptureBatch), Failure> {
    let start = Instant::now();
    let (mut samples, mut is_over) = (0, false);
    loop {
        // The end has a batch of its own: samples that came since the last one, and the final counts.
        let batch: CaptureBatch = if is_over {
            client.delete(path).await?
        } else {
            client.send(Method::POST, path, &()).await?
        };
        for sample in &batch.samples {
            // A batch may have more than were asked for, as the rate is the kernel's and the count is ours.
            if samples < most.samples {
                file.write(sample)?;
                samples += 1;
            }
        }
        // A reader of a pipe sees packets as they come.
        file.flush()?;
        if is_over {
            return Ok((samples, batch));
        }
        is_over = samples >= most.samples || start.elapsed() >= most.lasts;
        if batch.samples.is_empty() && !is_over {
            tokio::time::sleep(POLL_INTERVAL.min(most.lasts.saturating_sub(start.elapsed()))).await;
        }
    }
}

struct SampleFile<'a> {
    path: &'a Path,
    writer: PcapNgWriter<BufWriter<Box<dyn Write>>>,
    snaplen: u32,
    /// The number of each interface in the file.
    interfaces: BTreeMap<String, u32>,
}

impl<'a> SampleFile<'a> {
    fn open(path: &'a Path, snaplen: u32) -> Result<Self, Failure> {
        let out: Box<dyn Write> = if path.as_os_str() == "-" {
            Box::new(io::stdout())
        } else {
            // Nobody else is to read what is in packets.
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            Box::new(options.open(path).map_err(|error| unwritable(path, &error))?)
        };
        // The writer makes many small writes of each block.
        let writer = PcapNgWriter::new(BufWriter::new(out));
        let writer = writer.map_err(|error| unwritable(path, &error))?;
        Ok(Self { path, writer, snaplen, interfaces: BTreeMap::new() })
    }

    fn write(&mut self, sample: &SampleReport) -> Result<(), Failure> {
        let path = self.path;
        let failed = |error: PcapError| unwritable(path, &chain(&error));
        let interface_id = match self.interfaces.get(&sample.interface) {
            Some(id) => *id,
            None => {
                // Packets name an interface by the place of its description among those in the file.
                let id = self.interfaces.len() as u32;
                let name = Cow::Owned(sample.interface.clone());
                // pcapng has microseconds unless an interface says otherwise.
                let nanoseconds = InterfaceDescriptionOption::IfTsResol(9);
                let block = InterfaceDescriptionBlock {
                    linktype: if sample.starts_at_ip { DataLink::RAW } else { DataLink::ETHERNET },
                    snaplen: self.snaplen,
                    options: vec![InterfaceDescriptionOption::IfName(name), nanoseconds],
                };
                self.writer.write_pcapng_block(block).map_err(failed)?;
                self.interfaces.insert(sample.interface.clone(), id);
                id
            }
        };
        // Before 1970 only where the clock is wrong: that costs the time of a packet, not the packet.
        let timestamp = sample.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp,
            original_len: sample.length,
            data: Cow::Borrowed(&sample.data),
            options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(&sample.comment))],
        };
        self.writer.write_pcapng_block(block).map_err(failed).map(drop)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.writer.get_mut().flush().map_err(|error| unwritable(self.path, &error))
    }
}

fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(exit::NEGATIVE, format!("cannot write to {}: {error}", path.display()))
        .hint("choose another file for -w; what has been written stays")
}
