//! Tries the package in two guests of Debian 12, with systemd as their first process.
//!
//! `packaging/debian/verify` takes the steps in there. A sender goes on through all of them: it sends from an
//! address that is denied and from one that is not, which shows that packets do arrive.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    guest::{Card, Guest, Image, Machine, Network, Sender, Spec},
    progress::{say, span},
    workspace,
};

const IMAGE: Spec<'static> = Spec {
    name: "verify",
    // The oldest Debian that is served: its systemd lacks what the units want, its glibc what a newer one has.
    suite: "bookworm",
    kernel: "linux-image-cloud-amd64",
    // What looks at the package.
    packages: &["man-db", "bsdextrautils", "bash", "iproute2", "nftables"],
    kernels: &[],
    kernel_suites: &[],
    disk_mib: 1024,
};

/// The names of the guests; the first one founds the cluster.
const HOSTS: [&str; 2] = ["a", "b"];
/// Nothing from here may pass.
// TEST-NET-2 (RFC 5737): nobody's addresses, should a frame ever get out.
const DENIED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Everything from here passes.
const WITNESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
/// Limited on each host by itself, to `LIMIT`.
const LIMITED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
// Low, so that 100 packets a second, which an emulated card can take, exceed it several times
// over.
const LIMIT: Limit = Limit { rate: 20.0, burst: 10.0 };
/// Limited on all hosts together, to `SHARED_LIMIT`.
const SHARED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const SHARED_LIMIT: Limit = Limit { rate: 40.0, burst: 20.0 };

/// The time between two packets of a source.
// More than twice each limit here, and little enough for a machine that is emulated.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long more than a limit is sent.
const FLOOD: Duration = Duration::from_secs(8);
/// How many packets have to arrive before it is believed that nothing else passes, and how long that may take.
const ENOUGH: u64 = 100;
const ARRIVAL: Duration = Duration::from_secs(120);

/// Packets a second, and packets.
struct Limit {
    rate: f64,
    burst: f64,
}

/// Packets that have passed, by the name of their source in the script.
type Counts = BTreeMap<String, u64>;

struct Host {
    guest: Guest,
    card: Card,
    address: Ipv4Addr,
    sender: Option<Sender>,
    counts: Counts,
}

/// The guests, and how long each step took.
struct Verification {
    hosts: Vec<Host>,
    times: Vec<(&'static str, Duration)>,
}

/// Installs, starts, joins, reboots, upgrades, removes and purges `package`; `newer` is the same package
/// with a later version.
pub(super) fn run(package: &Path, newer: &Path) -> Result<()> {
    let begin = Instant::now();
    let image = Image::make(&IMAGE)?;
    let times = vec![("image", begin.elapsed())];
    let network = Network::new()?;
    let hosts = HOSTS.into_iter().zip(1..).map(|(name, number)| {
        let card = network.add_card()?;
        let machine = Machine {
            name,
            release: None,
            cpus: 1,
            memory_mib: 512,
            cards: std::slice::from_ref(&card),
            keeps_disk: false,
        };
        let guest = Guest::start(&image, &machine)?;
        let address = Ipv4Addr::new(10, 77, 0, number);
        Ok(Host { guest, card, address, sender: None, counts: Counts::new() })
    });
    let hosts = hosts.collect::<Result<_>>()?;
    let mut all = Verification { hosts, times };
    all.step("boot", |all| all.each(|host| host.guest.wait_for_boot()))?;
    all.step("install", |all| all.each(|host| host.install(package, newer)))?;
    all.step("files", |all| all.hosts[0].verify("look_at_files").map(drop))?;
    all.step("decide", |all| all.hosts[0].verify("decide").map(drop))?;
    all.step("protect", Verification::protect)?;
    all.step("cluster", Verification::form_cluster)?;
    all.step("reboot", Verification::reboot)?;
    all.step("upgrade", |all| all.each(Host::upgrade))?;
    // Before the removal, after which these packets are to pass.
    let unprotected: u64 = all.hosts.iter().map(|host| host.count("denied")).sum();
    all.step("remove", |all| all.hosts[0].remove())?;
    all.step("purge", |all| all.hosts[0].verify("purge").map(drop))?;
    let hosts = std::mem::take(&mut all.hosts);
    // Not just killed: a daemon that holds up the shutdown shows here.
    hosts.into_iter().try_for_each(|host| host.guest.power_off())?;
    say(format_args!(
        "verify: ok in {} ({}); unprotected packets: {unprotected}",
        span(begin.elapsed()),
        summary(&all.times)
    ));
    Ok(())
}

impl Verification {
    /// Takes a step; if it fails, tells what the daemons have logged.
    fn step(
        &mut self,
        name: &'static str,
        take: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        say(format_args!("verify: {name} ..."));
        let begin = Instant::now();
        let outcome = take(self);
        match &outcome {
            Ok(()) => say(format_args!("verify: {name}: ok in {}", span(begin.elapsed()))),
            Err(_) => self.hosts.iter_mut().for_each(Host::tell),
        }
        self.times.push((name, begin.elapsed()));
        outcome.with_context(|| format!("verify: step `{name}`"))
    }

    /// Does the same on all hosts, at the same time.
    fn each(&mut self, act: impl Fn(&mut Host) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let act = &act;
            let hosts = self.hosts.iter_mut().map(|host| scope.spawn(move || act(host)));
            hosts
                .collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|host| host.join().unwrap_or_else(|_| bail!("a step has panicked")))
        })
    }

    /// Names an interface that is down while packets wait for it, brings it up, and exceeds a limit.
    fn protect(&mut self) -> Result<()> {
        self.each(|host| {
            host.verify("count_packets")?;
            host.sender = Some(host.send(&[DENIED, WITNESS])?);
            // The daemon first, then the network, as at boot: no packet may come between the two.
            host.verify("protect")?;
            host.verify(&format!("bring_network_up {}", host.number()))?;
            host.see_protection()
        })?;
        for at in 0..self.hosts.len() {
            let passed = self.flood(LIMITED, "limited", at..at + 1, &LIMIT)?;
            say(format_args!("verify: {passed:?} packets passed a limit of 20 a second"));
        }
        Ok(())
    }

    /// Has the hosts find each other, and share a limit.
    fn form_cluster(&mut self) -> Result<()> {
        // Made in a guest, and carried over by the host: no key of the builder's is involved.
        let key = self.hosts[0].guest.check(
            "limiter --quiet cluster key generate /run/cluster.key >/dev/null && cat /run/cluster.key",
        )?;
        self.each(|host| host.join(&key))?;
        self.each(Host::see_cluster)?;
        let set = format!(
            "limiter limit set {}pps --burst {} --for {SHARED} --scope cluster",
            SHARED_LIMIT.rate, SHARED_LIMIT.burst
        );
        self.hosts[0].guest.check(&set)?;
        self.share()
    }

    fn share(&mut self) -> Result<()> {
        self.each(|host| host.verify("check_shared_limit").map(drop))?;
        let all = 0..self.hosts.len();
        let passed = self.flood(SHARED, "shared", all, &SHARED_LIMIT)?;
        ensure!(
            // The sum alone would be right, too, if one host had everything.
            passed.iter().all(|&count| count > 0),
            "a host has no part of the limit: {passed:?}"
        );
        say(format_args!(
            "verify: {passed:?} packets passed a limit of 40 a second for both hosts"
        ));
        Ok(())
    }

    /// Both at once: neither finds the other one there.
    fn reboot(&mut self) -> Result<()> {
        self.each(|host| host.guest.reboot())?;
        self.each(|host| host.guest.wait_for_boot())?;
        self.each(Host::see_cluster)?;
        self.share()
    }

    /// Exceeds a limit on some hosts for a while; returns how many packets passed on each.
    fn flood(
        &mut self,
        source: Ipv4Addr,
        counter: &str,
        hosts: std::ops::Range<usize>,
        limit: &Limit,
    ) -> Result<Vec<u64>> {
        let hosts = &mut self.hosts[hosts];
        hosts.iter_mut().try_for_each(Host::read_counts)?;
        let before: Vec<_> = hosts.iter().map(|host| host.count(counter)).collect();
        let begin = Instant::now();
        let senders: Vec<_> =
            hosts.iter().map(|host| host.send(&[source])).collect::<Result<_>>()?;
        thread::sleep(FLOOD);
        let sent: u64 = senders.iter().map(Sender::sent).sum();
        drop(senders);
        hosts.iter_mut().try_for_each(Host::read_counts)?;
        // Until the counters were read something could pass, so the time goes on until then.
        let most = limit.most(begin.elapsed());
        let passed = hosts.iter().zip(before).map(|(host, before)| host.count(counter) - before);
        let passed: Vec<_> = passed.collect();
        let sum = passed.iter().sum::<u64>() as f64;
        // Fewer could pass without any limit, and would prove nothing.
        ensure!(sent as f64 > 1.5 * most, "only {sent} packets were sent, {most:.0} may pass");
        ensure!(sum <= most, "{passed:?} of {sent} packets from {source} passed, {most:.0} may");
        // A host that drops everything keeps each limit, too.
        ensure!(sum >= limit.burst, "only {passed:?} of {sent} packets from {source} passed");
        Ok(passed)
    }
}

impl Host {
    /// The last number of its address.
    fn number(&self) -> u8 {
        self.address.octets()[3]
    }

    /// Takes a step of the script in the guest; returns what it printed.
    fn verify(&mut self, step: &str) -> Result<String> {
        self.guest.check(&format!("sh /root/verify {step}"))
    }

    fn send(&self, sources: &[Ipv4Addr]) -> Result<Sender> {
        self.card.send_to_it(sources, self.address, INTERVAL)
    }

    fn install(&mut self, package: &Path, newer: &Path) -> Result<()> {
        let script = workspace::root().join("packaging/debian/verify");
        self.guest.copy_in(&script, "/root/verify")?;
        self.guest.copy_in(package, "/root/limiter.deb")?;
        self.guest.copy_in(newer, "/root/newer.deb")?;
        self.verify("install_package /root/limiter.deb").map(drop)
    }

    fn join(&mut self, key: &str) -> Result<()> {
        let step = format!("sh /root/verify join_cluster {}", self.number());
        let output = self.guest.run_with(&step, key.as_bytes(), ARRIVAL)?;
        ensure!(output.status == 0, "{} does not join: {}", self.guest.name(), output.text);
        Ok(())
    }

    fn see_cluster(&mut self) -> Result<()> {
        self.verify("check_cluster")?;
        self.see_protection()
    }

    /// Upgrades while packets come in. What is counted goes on from what the old daemon has counted.
    fn upgrade(&mut self) -> Result<()> {
        let dropped = self.dropped()?;
        ensure!(dropped > 0, "nothing was dropped before the upgrade");
        self.verify("upgrade /root/newer.deb")?;
        let since = self.dropped()?;
        // The maps are taken over, so counters go on: a smaller number would be fresh maps, with a
        // moment between.
        ensure!(since >= dropped, "{dropped} packets were dropped before the upgrade, {since} now");
        self.see_cluster()
    }

    /// Removes the package. That packets pass now shows that they would have been counted before.
    fn remove(&mut self) -> Result<()> {
        self.verify("remove")?;
        let passes = |host: &mut Self| {
            host.read_counts()?;
            Ok(host.count("denied") > ENOUGH)
        };
        self.wait_until("the packets that were denied do not pass after the removal", passes)
    }

    fn dropped(&mut self) -> Result<u64> {
        let text = self.verify("print_dropped")?;
        text.trim().parse().with_context(|| format!("`limiter stats` says {}", text.trim()))
    }

    /// Waits for packets that may pass, and fails if one has passed that may not.
    fn see_protection(&mut self) -> Result<()> {
        self.read_counts()?;
        let before = self.count("witness");
        let arrived = |host: &mut Self| {
            host.read_counts()?;
            Ok(host.count("witness") > before + ENOUGH)
        };
        self.wait_until("no packets arrive", arrived)?;
        let (denied, witness, name) =
            (self.count("denied"), self.count("witness"), self.guest.name());
        ensure!(
            denied == 0,
            "{name}: unprotected packets: {denied}, beside {witness} that may pass"
        );
        Ok(())
    }

    fn wait_until(
        &mut self,
        not: &str,
        mut is: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now() + ARRIVAL;
        // No pause: each look is a command in an emulated guest, which takes long enough.
        while !is(self)? {
            if Instant::now() > until {
                bail!("{}: {not}: {:?}", self.guest.name(), self.counts);
            }
        }
        Ok(())
    }

    fn count(&self, counter: &str) -> u64 {
        self.counts.get(counter).copied().unwrap_or_default()
    }

    fn read_counts(&mut self) -> Result<()> {
        let text = self.verify("print_counts")?;
        let counts = parse(&text).with_context(|| format!("cannot read counts: {text}"))?;
        let is_less = self.counts.iter().any(|(name, count)| counts.get(name) < Some(count));
        // Counts are summed over boots: a lost one could hide packets that passed before the
        // program was there.
        ensure!(!is_less, "counts of an earlier boot are lost: {:?}, now {counts:?}", self.counts);
        self.counts = counts;
        Ok(())
    }

    /// Prints what the daemon has logged, and says where the console's log is.
    fn tell(&mut self) {
        let (name, console) = (self.guest.name().to_owned(), self.guest.console().to_owned());
        let journal = "journalctl --no-pager --boot --lines 60 --unit limiter.service --unit limiter-serve.service";
        match self.guest.run(journal) {
            Ok(output) => say(format_args!("{name}: $ {journal}\n{}", output.text.trim_end())),
            Err(error) => say(format_args!("{name}: no journal: {error:#}")),
        }
        say(format_args!("{name}: its console is in {}", console.display()));
    }
}

impl Limit {
    /// How many packets may pass in `time`; the guest's clock is not quite the host's.
    fn most(&self, time: Duration) -> f64 {
        self.burst + self.rate * time.as_secs_f64() * 1.02
    }
}

/// Lines of a name and a number.
fn parse(text: &str) -> Option<Counts> {
    let counts: Option<Counts> = text
        .lines()
        .map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect();
    // A counter that is missing would read as a zero, and so as protection.
    counts.filter(|counts| counts.contains_key("denied") && counts.contains_key("witness"))
}

fn summary(times: &[(&str, Duration)]) -> String {
    let times = times.iter().map(|(name, time)| format!("{name} {}", span(*time)));
    times.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_to_be_there() {
        let counts = parse("witness 12\ndenied 0\n").unwrap();
        assert_eq!(counts, [("denied".to_owned(), 0), ("witness".to_owned(), 12)].into());
        assert_eq!(parse(""), None);
        assert_eq!(parse("witness 12\n"), None);
        assert_eq!(parse("denied 0\nwitness\n"), None);
    }

    #[test]
    fn times_are_told_by_step() {
        let times = [("boot", Duration::from_secs(61)), ("purge", Duration::from_secs(2))];
        assert_eq!(summary(&times), "boot 1 min 1 s, purge 2 s");
    }

    #[test]
    fn the_script_knows_the_sources() {
        let script = include_str!("../../../packaging/debian/verify");
        for (source, name) in
            [(DENIED, "denied"), (WITNESS, "witness"), (LIMITED, "limited"), (SHARED, "shared")]
        {
            assert!(
                script.contains(&format!("ip saddr {source} counter name {name} drop")),
                "{name}"
            );
        }
        let Limit { rate, burst } = LIMIT;
        assert!(script.contains(&format!("rate = \"{rate}pps\"\nburst = {burst}\n")));
    }
}
