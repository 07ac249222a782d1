//! `limiter cluster`

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use hyper::Method;

use super::args::Global;
use super::config::key_file;
use super::output::Output;
use api::client::Client;
use api::error::{Failure, exit};
use api::requests::{ForgetHost, LeaveQuery};
use api::{ClusterForgotten, ClusterFounded, ClusterLeft, KeyGenerated, KeysReport};
use control::cluster::key_file::generate;
use model::rotation::Stage;
use model::units::parse_duration;

/// Where the daemon tells of keys.
pub(super) const KEYS: &str = "/v1/cluster/keys";

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Found a cluster of this host, which others join
    ///
    /// Once for a cluster, on any one of its hosts: that has all of each limit then, and gives the others their part as
    /// they join. Nothing else founds a cluster, unless the configuration has bootstrap_expect: a host that has lost its
    /// state directory waits for a member, and joins again. Do not found a second one for it.
    ///
    /// Run on two hosts this makes two clusters, and each lets the whole of every limit through. As soon as one gets
    /// to know the other, `limiter status` and `limiter peers` say so on both. Looks for a member for 1.5 s before.
    /// Exit code 1 if this host belongs to a cluster already, or a member has answered: then it has joined.
    Init,
    /// Make and change the key that all hosts of the cluster have
    #[command(subcommand)]
    Key(KeyCommand),
    /// Give what a host had that is gone for good to the others
    ///
    /// They get it by themselves after a home lease, ten minutes: until then it may still use its part. This asks for
    /// it as soon as that has ended since it was heard. With --now at once, and where half of the hosts or more are
    /// gone: its machine must be off. Exit code 1 if no lost host is called so.
    Forget {
        /// Its name
        name: String,
        /// Its machine is off: do not wait for its home lease, nor for its vote
        #[arg(long)]
        now: bool,
        /// Do not ask whether its machine is off
        #[arg(long, requires = "now")]
        yes: bool,
    },
    /// Hand this host's part of the cluster's limits over to the others, and leave
    ///
    /// From then on nothing passes this host that is under a limit of the cluster: take its traffic away before.
    /// A host that only restarts needs no leave: its part waits for it, and so it does after a crash. Exit code 1
    /// if not all could be handed over in time.
    Leave {
        /// How long that may take
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, allow_hyphen_values = true)]
        wait: Duration,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a file with a new key, which only its owner can read; needs no daemon
    ///
    /// Do so on one host, and copy the file to all others: who has no such key is no member. Exit code 1 if
    /// the file is there already.
    Generate {
        /// The file [default: key_file of the configuration's [cluster], or /etc/limiter/cluster.key]
        file: Option<PathBuf>,
        /// Replace the file if it is there
        #[arg(long)]
        force: bool,
    },
    /// Let all hosts of the cluster use a new key, without a moment in which two do not understand each other
    ///
    /// All members that are there get it under the present key, keep it, and accept both. When all of them do,
    /// they begin to seal with the new one, and forget the old one ten seconds later. It can be asked for on any
    /// host. Waits until this host uses the new key; exit code 1 if it does not by then, and goes on all the same.
    ///
    /// The new key is kept in the state directory (cluster.keys, only for its owner); the key file is left as it is,
    /// and counts again once it is changed. A host that is away meanwhile has only the old key and stays out: copy
    /// cluster.keys of another host to its key file. Where the present key has become known to somebody who
    /// listens, give all hosts a new key file by another way instead: the new key travels under the present one.
    Rotate {
        /// How long to wait for it
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, allow_hyphen_values = true)]
        wait: Duration,
    },
    /// Tell which keys are in use, in short, and how far a rotation is
    Status,
}

/// How long founding a cluster may take.
// Beyond the client's usual patience: the daemon looks for members first, and then waits for its disk.
const INIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long forgetting a host may take: the others are asked whether they still hear it.
const FORGET_TIMEOUT: Duration = Duration::from_secs(25);

/// How often it is asked how far the rotation is.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn generate_key(
    output: &mut Output<'_>,
    global: &Global,
    file: Option<PathBuf>,
    force: bool,
) -> Result<u8, Failure> {
    // Where the daemon looks for it, so that a key made without an argument is the one it reads.
    let file = file.map_or_else(|| key_file(global), Ok)?;
    let replaced = generate(&file, force)?;
    output.print(&KeyGenerated { file: file.display().to_string(), replaced })
}

pub(super) async fn init(client: &Client, output: &mut Output<'_>) -> Result<u8, Failure> {
    let client = client.clone().patient(INIT_TIMEOUT);
    let founded: ClusterFounded = client.send(Method::POST, "/v1/cluster/init", &()).await?;
    output.print(&founded)
}

pub(super) async fn forget(
    client: &Client,
    output: &mut Output<'_>,
    name: &str,
    now: bool,
    yes: bool,
) -> Result<u8, Failure> {
    let client = client.clone().patient(FORGET_TIMEOUT);
    let ask = |dry_run| {
        let request = ForgetHost { name: name.to_owned(), now, dry_run };
        let client = &client;
        async move {
            client.send::<ClusterForgotten>(Method::POST, "/v1/cluster/forget", &request).await
        }
    };
    if now && !yes {
        is_off(&ask(true).await?)?;
    }
    output.print(&ask(false).await?)
}

/// Asks whether the machine of a host is off.
///
/// # Errors
/// If it is not, or nobody is there to say so.
fn is_off(
    ClusterForgotten { name, share, lease_seconds, .. }: &ClusterForgotten,
) -> Result<(), Failure> {
    let until = lease_seconds.map_or_else(
        || "until it hears from the others".to_owned(),
        |seconds| format!("for up to {seconds:.0} s"),
    );
    let share = 100.0 * share;
    let bound = format!("if {name} is still up, {share:.1} % more than each limit passes {until}");
    let failure = |message: &str| Failure::new(exit::NEGATIVE, message);
    if !io::stdin().is_terminal() {
        return Err(failure(&bound).hint("switch its machine off, and repeat with --yes"));
    }
    eprint!("{bound}. Is its machine off? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| failure(&error.to_string()))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(failure("nothing is changed")),
    }
}

pub(super) async fn leave(
    client: &Client,
    output: &mut Output<'_>,
    wait: Duration,
) -> Result<u8, Failure> {
    let seconds = wait.as_secs().clamp(1, LeaveQuery::MAX);
    // The daemon says how far it has come when that time is over.
    let client = client.clone().patient(Duration::from_secs(seconds + 10));
    let path = format!("/v1/cluster/leave?seconds={seconds}");
    let left: ClusterLeft = client.send(Method::POST, &path, &()).await?;
    output.print(&left)
}

pub(super) async fn rotate_key(
    client: &Client,
    output: &mut Output<'_>,
    wait: Duration,
) -> Result<u8, Failure> {
    // The number before the rotation tells the new key: another host may have begun one in between.
    let before: KeysReport = client.send(Method::POST, &format!("{KEYS}/rotate"), &()).await?;
    // From the answer on: what is waited for is the hosts' agreement, not this connection.
    let until = Instant::now() + wait;
    loop {
        let report: KeysReport = client.get(KEYS).await?;
        // Accepted is only half of it: the host still seals with the old key.
        let done = report.number > before.number && report.stage != Stage::Accepted;
        if done || Instant::now() >= until {
            output.print(&report)?;
            return Ok(if done { exit::OK } else { exit::NEGATIVE });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
