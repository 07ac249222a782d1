//! `guests`: a cluster of machines that each have a kernel and a clock of their own, and what may befall these. What
//! passes is counted in the machines, by nftables behind the limiter, against time as this machine has it.

use std::{
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tools::Need;

use crate::{
    build,
    guest::{Card, Guest, Image, Machine, Network, Sender, Snapshot, Spec},
    progress::{say, span},
    setup,
};

const IMAGE: Spec<'static> = Spec {
    name: "guests",
    suite: "bookworm",
    kernel: "linux-image-cloud-amd64",
    packages: &["adjtimex", "iproute2", "nftables"],
    kernels: &[],
    kernel_suites: &[],
    disk_mib: 1024,
};
const HOSTS: usize = 3;
/// The limit of the cluster, packets a second and packets.
// Low, as an emulated card takes a few hundred packets a second.
const RATE: f64 = 60.0;
const BURST: f64 = 30.0;
/// The source, which sends more than the limit to each host.
// TEST-NET-2 (RFC 5737): nobody's address, should a frame ever get out.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const INTERVAL: Duration = Duration::from_millis(12);
/// How long a fault is looked at, and how long its end.
const PHASE: Duration = Duration::from_secs(15);
/// How long the machine that is paused stands still.
const PAUSE: Duration = Duration::from_secs(10);
/// By how much the clock is slewed: 5 %, as `adjtimex --tick` has it, µs in 10 ms.
const SLEWED: u32 = 10_500;
const SLEW: f64 = 0.05;
/// What of the limit is used at least where nothing is wrong.
const USED: f64 = 0.9;
/// What clocks that are emulated may differ by without any fault.
const DRIFT: f64 = 0.01;
/// How long hosts may take to find each other, and to divide the limit.
const SOON: Duration = Duration::from_secs(180);

/// Arguments of `cargo xtask guests`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What happens to the last host.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Slewed,
    Paused,
    Restored,
}

impl Fault {
    const ALL: [Self; 4] = [Self::None, Self::Slewed, Self::Paused, Self::Restored];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Slewed => "clock slewed by 5 %",
            Self::Paused => "paused for 10 s",
            Self::Restored => "restored from a snapshot",
        }
    }

    /// What passes beside the limit at most, packets: "What is not promised" of `docs/cluster-protocol.md`.
    const fn beside(self) -> f64 {
        match self {
            Self::None => 0.0,
            // Until it is seen, which takes a second, and again when the clock is right.
            Self::Slewed => 2.0 * 4.0 * SLEW * RATE,
            Self::Paused => 1.5 * RATE,
            // Until it hears the others, which takes a second or two.
            Self::Restored => 2.0 * RATE + BURST,
        }
    }
}

struct Host {
    guest: Option<Guest>,
    card: Card,
    name: String,
    address: Ipv4Addr,
}

/// A failure if more has passed than may, or less than can.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let begin = Instant::now();
    setup::ensure(&[Need::Kernel, Need::Charts, Need::Guest])?;
    let program = build::for_guests(&["limiter"])?.join("limiter");
    let image = Image::make(&IMAGE)?;
    let network = Network::new()?;
    let mut hosts = (1..=HOSTS as u8)
        .map(|number| {
            let (card, name) = (network.add_card()?, format!("host-{number}"));
            let guest = Some(Guest::start(&image, &machine(&name, &card))?);
            Ok(Host { guest, card, name, address: Ipv4Addr::new(10, 77, 0, number) })
        })
        .collect::<Result<Vec<_>>>()?;
    for host in &mut hosts {
        host.guest()?.wait_for_boot()?;
        host.guest()?.copy_in(&program, "/root/limiter")?;
    }
    say(format_args!("{HOSTS} machines run after {}", span(begin.elapsed())));
    form_cluster(&mut hosts)?;
    let mut rows = Vec::new();
    for fault in Fault::ALL {
        rows.push(measure(&image, &mut hosts, fault)?);
    }
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", json!({ "guests": rows }));
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let bad = rows.iter().filter(|row| row["within"] != true).count();
    say(format_args!("{} rows in {}, {bad} out of bounds", rows.len(), span(begin.elapsed())));
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn machine<'a>(name: &'a str, card: &'a Card) -> Machine<'a> {
    let cards = std::slice::from_ref(card);
    // A tenth of it is for files that are copied in.
    Machine { name, release: None, cpus: 1, memory_mib: 1024, cards, keeps_disk: true }
}

/// Has the hosts share the limit.
fn form_cluster(hosts: &mut [Host]) -> Result<()> {
    let seed = hosts[0].address;
    let generate = "chmod +x /root/limiter && /root/limiter --quiet cluster key generate /root/key \
                    >/dev/null && cat /root/key";
    let key = hosts[0].guest()?.check(generate)?;
    for host in hosts.iter_mut() {
        let script = format!(
            "set -e; umask 077; cat >/root/key; chmod +x /root/limiter
             ip address add {0}/24 dev eth0; ip link set eth0 up
             nft 'table inet counted {{ counter passed {{ }}
                  chain counted {{ type filter hook prerouting priority raw
                                   ip saddr {SOURCE} counter name passed drop; }}; }}'
             systemd-run --quiet --unit limiter --property Environment=HOME=/root /root/limiter run \
                 --interface eth0 --cluster-name {1} --cluster-listen {0}:7700 \
                 --cluster-seeds {seed}:7700 --cluster-key-file /root/key",
            host.address, host.name
        );
        let output = host.guest()?.run_with(&script, key.as_bytes(), SOON)?;
        ensure!(output.status == 0, "{} does not start: {}", host.name, output.text);
    }
    for host in hosts.iter_mut() {
        host.wait_for("the daemon", |status| status["interfaces"][0]["name"] == "eth0")?;
    }
    hosts[0].guest()?.check("/root/limiter cluster init")?;
    for host in hosts.iter_mut() {
        host.wait_for("even shares", |status| {
            let home = status["cluster"]["home"].as_f64().unwrap_or_default();
            status["cluster"]["members"] == HOSTS && (home * HOSTS as f64 - 1.0).abs() < 0.1
        })?;
    }
    let set = format!("/root/limiter limit set {RATE}pps --burst {BURST} --scope cluster");
    hosts[0].guest()?.check(&set)?;
    for host in hosts.iter_mut() {
        host.wait_for("the limit", |status| status["limits"] == 1)?;
    }
    Ok(())
}

/// What passes while a fault befalls the last host, and afterwards.
fn measure(image: &Image, hosts: &mut [Host], fault: Fault) -> Result<Value> {
    let begin = Instant::now();
    let mut senders = hosts.iter().map(Host::send).collect::<Result<Vec<_>>>()?;
    // Until the limit is where its packets are.
    thread::sleep(Duration::from_secs(5));
    let last = hosts.len() - 1;
    let mut snapshot = None;
    if matches!(fault, Fault::Restored) {
        // Nothing comes meanwhile: what is counted in between would be lost with the machine.
        senders.pop();
        thread::sleep(Duration::from_secs(1));
        snapshot = Some((hosts[last].passed()?, hosts[last].guest()?.snapshot()?));
        senders.push(hosts[last].send()?);
        thread::sleep(PHASE / 3);
    }
    let from = Instant::now();
    let mut before: Vec<u64> = hosts.iter_mut().map(Host::passed).collect::<Result<_>>()?;
    match (fault, snapshot) {
        (Fault::Slewed, _) => {
            hosts[last].guest()?.check(&format!("adjtimex --tick {SLEWED}"))?;
            thread::sleep(PHASE);
            hosts[last].guest()?.check("adjtimex --tick 10000")?;
        }
        (Fault::Paused, _) => {
            hosts[last].guest()?.pause()?;
            thread::sleep(PAUSE);
            hosts[last].guest()?.go_on()?;
        }
        (Fault::Restored, Some((passed, snapshot))) => {
            // What it has passed since goes with it.
            let gone = hosts[last].passed()? - before[last];
            before[last] = passed.saturating_sub(gone);
            hosts[last].restore(image, &snapshot)?;
        }
        _ => {}
    }
    thread::sleep(PHASE);
    let all: Vec<u64> = hosts.iter_mut().map(Host::passed).collect::<Result<_>>()?;
    let seconds = from.elapsed().as_secs_f64();
    // Without a fault's after-effects: a host is not trusted again for some seconds.
    let calm = Instant::now();
    thread::sleep(PHASE);
    let end: Vec<u64> = hosts.iter_mut().map(Host::passed).collect::<Result<_>>()?;
    let used = sum(&all, &end) as f64 / (RATE * calm.elapsed().as_secs_f64());
    let sent: u64 = senders.iter().map(Sender::sent).sum();
    let (admitted, most) = (sum(&before, &all), BURST + RATE * seconds * (1.0 + DRIFT));
    let bound = most + fault.beside();
    let within = admitted as f64 <= bound && used >= USED;
    say(format_args!(
        "{}: {admitted} packets passed in {seconds:.1} s, {bound:.0} may ({most:.0} by the limit); then {used:.3} of \
         the limit is used; {sent} were sent; {}",
        fault.name(),
        span(begin.elapsed())
    ));
    drop(senders);
    Ok(json!({
        "fault": fault.name(), "seconds": seconds, "admitted": admitted, "expected": most,
        "bound": bound, "sent": sent, "utilisation": used, "within": within,
    }))
}

fn sum(before: &[u64], after: &[u64]) -> u64 {
    before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).sum()
}

impl Host {
    fn guest(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().with_context(|| format!("{} is off", self.name))
    }

    fn send(&self) -> Result<Sender> {
        self.card.send_to_it(&[SOURCE], self.address, INTERVAL)
    }

    /// Packets of the source that the limiter has let through.
    fn passed(&mut self) -> Result<u64> {
        let text = self.guest()?.check("nft list counter inet counted passed")?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
        let count = words.nth(1).and_then(|word| word.parse().ok());
        count.with_context(|| format!("cannot read a counter: {text}"))
    }

    /// Waits until the daemon says so.
    fn wait_for(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let until = Instant::now() + SOON;
        loop {
            let output = self.guest()?.run("/root/limiter status --json")?;
            if serde_json::from_str(&output.text).is_ok_and(|status| is(&status)) {
                return Ok(());
            }
            if Instant::now() > until {
                let journal = self.guest()?.run("journalctl --no-pager -u limiter | tail -n 30")?;
                bail!("{}: {what}: {}\n{}", self.name, output.text.trim(), journal.text);
            }
        }
    }

    /// The machine is gone, and goes on as it was when a snapshot was made.
    fn restore(&mut self, image: &Image, snapshot: &Snapshot) -> Result<()> {
        drop(self.guest.take());
        let machine = machine(&self.name, &self.card);
        self.guest = Some(Guest::restore(image, &machine, snapshot)?);
        Ok(())
    }
}
