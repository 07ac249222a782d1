//! `limiter sketch`

use std::fs::{File, metadata};
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use hyper::Method;

use super::output::Output;
use super::suggest::counting_down;
use api::client::Client;
use api::error::{Failure, exit};
use api::requests::SketchCellsRequest;
use api::{SKETCH_RATES, SketchCells, SketchReport, StatusReport};
use model::target::{short_prefix, source_of};
use telemetry::saved_sketch::{Header, MAX_FILE, SavedSketch};

/// How long the daemon may take beside waiting.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

const SAVE: &str = "\
The file has the packets of the present window of the Count-Min Sketch by cell (134 ms by default), the
HyperLogLog of the last full 1.07 s, and a t-digest of the packets/s that sources with a bucket have sent in
about the last second. It has no address, and not the secret key of the hash: only what that is known by.";

const ESTIMATE: &str = "\
Which cells are an address's, only a daemon with the hash's key can tell: that of this host is asked, with
--estimate alone. Hosts of a cluster have one key, so any of them will do. Whoever may change limits may ask:
who knows the cells of many addresses can compute which sources collide.";

#[derive(Debug, Subcommand)]
pub(super) enum SketchCommand {
    /// Write what the data plane estimates at present to a file
    #[command(after_help = SAVE)]
    Save {
        /// The file; one that is there is replaced
        file: PathBuf,
    },
    /// Merge files of several hosts or moments to one, as if one host had seen all; needs no daemon
    ///
    /// Packets add up, sources are united, and rates are joined. What was saved on hosts with another key, other
    /// sizes, windows or source prefixes is refused, with exit code 2, and nothing is written.
    Merge {
        /// The files; their order does not matter
        #[arg(required = true, num_args = 2.., value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Where to; one that is there is replaced
        #[arg(short, long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Show what a file says
    #[command(after_help = ESTIMATE)]
    Show {
        /// The file
        file: PathBuf,
        /// How many packets the source of this address has sent
        #[arg(long, value_name = "ADDRESS")]
        estimate: Option<IpAddr>,
    },
}

pub(super) async fn run(
    client: impl FnOnce() -> Client,
    output: &mut Output<'_>,
    command: SketchCommand,
) -> Result<u8, Failure> {
    match command {
        SketchCommand::Save { file } => {
            let client = client();
            let status: StatusReport = client.get("/v1/status").await?;
            let over = SKETCH_RATES + Duration::from_secs_f64(2.0 * status.sketch.window_ms / 1e3);
            let client = client.patient(over + TIMEOUT_MARGIN);
            let bytes = counting_down(over, client.get_bytes("/v1/sketch")).await?;
            let sketch = SavedSketch::read(&bytes)?;
            write(&file, &bytes)?;
            output.print(&SketchReport::new(&sketch, None))
        }
        SketchCommand::Merge { files, out } => {
            let read: Result<Vec<_>, _> = files.iter().map(|file| read(file)).collect();
            let merged = SavedSketch::merge(read?)?;
            write(&out, &merged.bytes())?;
            output.print(&SketchReport::new(&merged, None))
        }
        SketchCommand::Show { file, estimate } => {
            let sketch = read(&file)?;
            let estimate = match estimate {
                Some(address) => Some(ask(&client(), &sketch, address).await?),
                None => None,
            };
            output.print(&SketchReport::new(&sketch, estimate))
        }
    }
}

/// The source of an address, and how many packets it has sent.
async fn ask(
    client: &Client,
    sketch: &SavedSketch,
    address: IpAddr,
) -> Result<(String, u64), Failure> {
    let Header { ipv4_prefix, ipv6_prefix, width, depth, .. } = sketch.header;
    let source = source_of(address, ipv4_prefix, ipv6_prefix);
    let request = SketchCellsRequest { address: source.addr(), width, depth };
    let SketchCells { key, cells } =
        client.send(Method::POST, "/v1/sketch/cells", &request).await?;
    let packets = sketch.estimate(&cells).filter(|_| key == sketch.header.key);
    let packets = packets.ok_or_else(|| {
        let message = format!("the daemon's hash has the key {key}, the file's {}", sketch.header.key);
        Failure::new(exit::USAGE, message).hint(
            "ask on the host that has saved it, or on one of its cluster; a daemon without a cluster has another \
             key after each start with fresh maps",
        )
    })?;
    Ok((short_prefix(&source), packets))
}

fn read(path: &Path) -> Result<SavedSketch, Failure> {
    let mut bytes = Vec::new();
    // Whatever the file is, it must not fill the memory.
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map_err(|error| {
        Failure::new(exit::USAGE, format!("cannot read {}: {error}", path.display()))
            .hint("name a file that `limiter sketch save` has written")
    })?;
    SavedSketch::read(&bytes).map_err(|error| Failure::from(error).context(path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    // A rename would take the place of what is no file, such as `/dev/null`.
    let written = match metadata(path) {
        Ok(found) if !found.is_file() => Err(ErrorKind::AlreadyExists.into()),
        _ => state::write_file(path, |file| file.write_all(bytes)),
    };
    written.map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(exit::USAGE, message).hint("name a file in a directory that may be written to")
    })
}
