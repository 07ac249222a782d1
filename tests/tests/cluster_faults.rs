//! What goes wrong between real daemons, and what others do to them: all of it is counted and told of, and
//! the limit is kept meanwhile.
//!
//! Faults that are shown elsewhere, in `limiter-user/crates/cluster` unless it is a test of this folder:
//!
//! | fault | shown by |
//! |---|---|
//! | another key, replayed and forged packets, also millions of them | here; `link/tests.rs`, `link/fuzz.rs` |
//! | an old key | `cluster_keys.rs`: a host that was away |
//! | another protocol | here; `link/tests.rs` |
//! | an upgrade to a later protocol, and back | here; `link/tests.rs` |
//! | two hosts with one name | `cluster.rs`; `link/tests.rs` |
//! | a host that lies about its demand | `escrow/tests/lies.rs` |
//! | a seed that is not found, or where nobody answers | here; seeds that change: `cluster_seeds.rs`, `link/seeds.rs` |
//! | a wall clock that steps by an hour, or back | `limits/tests.rs` (`Step::Jump`), `limits/clock.rs`, `wire/epoch.rs` |
//! | a monotonic clock that starts anew, an hour back or ahead | `simulate/suite/reboot.toml`, `escrow/tests` |
//! | a hundred thousand hot sources at once | `cluster_crowd.rs` |
//! | a state directory that was copied or put back | `cluster_overage.rs`: the one fault that costs the limit |

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt as _,
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{
    Fleet,
    cli::limiter_binary,
    hosts::{Hosts, Watch, flood},
    model::traffic::Random,
    process::{cpu_time, own_memory, wait_for},
    sender::Sending,
    wiretap::{Pelting, Wiretap},
};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
const LIMIT: [&str; 6] = ["limit", "set", "3000pps", "--burst", "300", "--scope"];
const TIMEOUT: Duration = Duration::from_secs(30);

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

fn set_limit(hosts: &Hosts, all: &[usize]) {
    hosts.daemons[1].cli().ok(&[&LIMIT[..], &["cluster"]].concat());
    hosts.wait_limit(all, "3000pps");
    hosts.wait_even(all);
}

fn control(host: usize) -> Ipv4Addr {
    match Fleet::address(host) {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} is not of the network between hosts"),
    }
}

/// What a host has not listened to, by reason, as another host tells.
fn refused(hosts: &Hosts, asked: usize, of: usize) -> BTreeMap<String, u64> {
    let told = wait_for("what a host tells of itself", TIMEOUT, || {
        let report = hosts.peers(asked);
        let peers = report["peers"].as_array()?;
        let peer = peers.iter().find(|peer| peer["host"] == tests::hosts::name(of))?;
        peer["details"]["refused"].as_array().cloned()
    });
    let counted = told.iter().map(|refused| {
        assert!(refused["meaning"].as_str().is_some_and(|meaning| !meaning.is_empty()));
        let reason = refused["reason"].as_str().expect("a reason").to_owned();
        (reason, refused["packets"].as_u64().expect("a count"))
    });
    counted.collect()
}

/// What is sent to the first host by the one that has another key.
struct Attack<'a> {
    hosts: &'a Hosts,
    attacker: usize,
}

impl Attack<'_> {
    /// Sends all of them once, and asserts that each is counted as refused, some of them for `reasons`.
    fn refused(&self, what: &str, datagrams: &[Vec<u8>], reasons: &[&str]) {
        let before = refused(self.hosts, 1, 0);
        let sent = datagrams.len() as u64;
        let from = &self.hosts.fleet.hosts[self.attacker].receiver;
        let pelting = Pelting::start(from, control(0), datagrams.to_vec(), 5000.0, sent);
        assert_eq!(pelting.join(), sent);
        let told = wait_for(what, TIMEOUT, || {
            let mut told = refused(self.hosts, 1, 0);
            for (reason, count) in &mut told {
                *count -= before.get(reason).copied().unwrap_or(0);
            }
            told.retain(|_, count| *count > 0);
            (told.values().sum::<u64>() >= sent).then_some(told)
        });
        println!("{what}: {sent} datagrams, refused: {told:?}");
        for reason in reasons {
            assert!(told.contains_key(*reason), "{what}: nothing is {reason}: {told:?}");
        }
    }
}

/// Each of `frames`, changed.
fn changed(frames: &[Vec<u8>], mut change: impl FnMut(&mut Vec<u8>)) -> Vec<Vec<u8>> {
    let mut frames = frames.to_vec();
    frames.iter_mut().for_each(&mut change);
    frames
}

/// What anybody can make up: noise, and noise behind a head that was seen on the wire.
fn noise(random: &mut Random, seen: &[Vec<u8>]) -> Vec<Vec<u8>> {
    const HEAD: usize = 34;
    let mut made = Vec::new();
    for number in 0..4096 {
        let length = random.below(1200) as usize;
        let mut datagram: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        if number % 2 == 0 && length > HEAD {
            let head = &seen[random.below(seen.len() as u64) as usize];
            datagram[..HEAD].copy_from_slice(&head[..HEAD]);
            if number % 4 == 0 {
                // One that has not come yet: only its seal tells that it is forged.
                datagram[HEAD - 4..HEAD].copy_from_slice(&(random.number() as u32).to_be_bytes());
            }
        }
        made.push(datagram);
    }
    made
}

#[test]
fn what_hostile_and_misconfigured_hosts_send_is_told_of_and_changes_nothing() {
    let mut hosts = Hosts::start(2, &[]);
    let nobody = format!("{}:7700", Fleet::address(199));
    hosts.join(&["--cluster-seeds", "nowhere.invalid:7700", "--cluster-seeds", &nobody]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    set_limit(&hosts, &all);
    hosts.join_with_other_key(&[]);

    // All of it is told by who is asked.
    let told = |host: usize, what: &str| {
        wait_for(what, TIMEOUT, || {
            let warnings = hosts.peers(host)["warnings"].to_string();
            let status = hosts.daemons[host].cli().run(&["status"]).json["warnings"].to_string();
            (warnings.contains(what) && status.contains(what)).then_some(())
        });
    };
    told(2, "the seed nowhere.invalid:7700 is not found");
    told(2, &format!("nobody answers at the seed {nobody}"));
    told(0, &format!("from {}:7700", Fleet::address(3)));
    told(0, "unknown key");
    told(3, "this host belongs to no cluster yet");
    told(3, &format!("nobody answers at the seed {}:7700", Fleet::address(0)));
    assert_eq!(hosts.status(3)["members"], 1);

    let watch = Watch::new(&hosts.fleet, SOURCE);
    let sending: Vec<_> = all.map(|host| flood(&hosts.fleet, host, SOURCE, 3000.0)).into();
    let begun = Instant::now();
    let tap = Wiretap::new(&hosts.fleet.hosts[0].receiver);
    seconds(3.0);
    let seen = tap.stop();
    assert!(seen.len() > 30, "{} datagrams in 3 s", seen.len());
    let seen: Vec<_> = seen.into_iter().take(4000).collect();
    let (mut random, attack) = (Random(5), Attack { hosts: &hosts, attacker: 3 });
    attack.refused("sent once more", &seen, &["replayed", "key"]);
    let flipped = changed(&seen, |frame| {
        let bit = random.below(8 * frame.len() as u64) as usize;
        frame[bit / 8] ^= 1 << (bit % 8);
    });
    attack.refused("with a bit flipped", &flipped, &["forged"]);
    let cut = changed(&seen, |frame| frame.truncate(random.below(frame.len() as u64) as usize));
    attack.refused("cut short", &cut, &["short", "replayed"]);
    let another = changed(&seen, |frame| frame[1] = frame[1].wrapping_add(1));
    attack.refused("of another protocol", &another, &["protocol"]);
    told(0, "another version of the protocol");

    // A flood of noise.
    let pid = hosts.daemons[0].pid();
    let (memory, cpu, from) = (own_memory(pid), cpu_time(pid), begun.elapsed().as_secs_f64());
    let noise = noise(&mut random, &seen);
    let attacker = &hosts.fleet.hosts[3].receiver;
    let pelting = Pelting::start(attacker, control(0), noise, 50_000.0, 250_000);
    let sent = pelting.join();
    let to = begun.elapsed().as_secs_f64();
    let (took, grown) = (cpu_time(pid) - cpu, own_memory(pid).saturating_sub(memory));
    let part = took.as_secs_f64() / (to - from);
    println!(
        "noise: {:.0} datagrams/s; the daemon takes {:.0} % of a CPU, and {} KiB more than {} KiB",
        sent as f64 / (to - from),
        100.0 * part,
        grown >> 10,
        memory >> 10
    );
    println!("noise: {} datagrams found no room", hosts.no_room(0));
    // All of them, though a slow machine takes longer than 5 s.
    assert_eq!(sent, 250_000);
    assert!(part < 0.9 && grown < 16 << 20, "{part} of a CPU, {grown} bytes");
    let counted = refused(&hosts, 1, 0);
    println!("refused in all: {counted:?}");
    for reason in ["foreign", "forged", "replayed"] {
        assert!(counted[reason] > 1000, "{counted:?}");
    }
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.assert_kept("while a host is attacked", RATE, BURST);
    let used = admitted.utilisation(RATE, from + 1.0, to);
    println!("while a host is attacked: {used:.3} of the limit is used");
    // What members say is lost in the crowd where the machine is busy; the floors remain.
    assert!(used > 0.2, "{used}");
    for host in all {
        let status = hosts.status(host);
        assert_eq!(status["members"], 3, "{status}");
        assert!((hosts.home(host) - 1.0 / 3.0).abs() < 0.04, "{status}");
    }

    // Who was started again remembers nothing of what was recorded, and takes none of it.
    hosts.kill(0);
    hosts.restart(0);
    hosts.wait_members(&all, 3);
    let attack = Attack { hosts: &hosts, attacker: 3 };
    attack.refused("sent to a later run", &seen, &["stale_recipient"]);
    hosts.wait_members(&all, 3);
    assert!(!hosts.log(0).contains("panicked") && !hosts.log(3).contains("panicked"));
}

#[test]
fn five_hosts_keep_the_limit_through_loss_deafness_a_hang_and_restarts() {
    let mut hosts = Hosts::start(5, &[]);
    let all = [0, 1, 2, 3, 4];
    set_limit(&hosts, &all);
    let watch = Watch::new(&hosts.fleet, SOURCE);
    let sending: Vec<_> = all.map(|host| flood(&hosts.fleet, host, SOURCE, 2000.0)).into();
    let begun = Instant::now();
    let mut phases = vec![("all is well", 0.0)];
    let mut phase = |what| phases.push((what, begun.elapsed().as_secs_f64()));
    seconds(4.0);
    hosts.fleet.lose(10);
    phase("a tenth is lost");
    seconds(6.0);
    // What it says is heard; what two others say is not heard by it.
    hosts.fleet.deafen(1, &[0, 2]);
    phase("one does not hear two");
    seconds(6.0);
    hosts.fleet.lose(10);
    phase("it hears them again");
    seconds(4.0);
    hosts.daemons[2].signal(libc::SIGSTOP);
    phase("one hangs");
    seconds(3.0);
    hosts.daemons[2].signal(libc::SIGCONT);
    phase("it goes on");
    seconds(4.0);
    phase("each is started again");
    for host in all {
        assert_eq!(hosts.daemons[host].terminate().code(), Some(0));
        hosts.daemons[host].restart(&hosts.fleet.hosts[host]);
        seconds(0.5);
    }
    hosts.fleet.lose(0);
    phase("nothing is lost");
    seconds(5.0);
    let end = begun.elapsed().as_secs_f64();
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    let mut last = 0.0;
    for (at, (what, from)) in phases.iter().enumerate() {
        let to = phases.get(at + 1).map_or(end, |next| next.1);
        last = admitted.utilisation(RATE, *from, to);
        println!("{what}, {:.1} s: {last:.3} of the limit is used", to - from);
    }
    admitted.print(end as u32);
    admitted.assert_kept("five hosts, one fault after the other", RATE, BURST);
    hosts.wait_members(&all, 5);
    let homes = all.map(|host| hosts.home(host));
    println!("home shares: {homes:.4?}");
    assert!(homes.iter().sum::<f64>() <= 1.0 + 1e-9, "{homes:?}");
    assert!(last > 0.7, "{last}");
    for host in all {
        assert!(!hosts.log(host).contains("panicked"), "{}", hosts.log(host));
    }
}

#[test]
fn a_cluster_is_upgraded_host_by_host_under_load_and_back() {
    let mut hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    set_limit(&hosts, &all);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ahead = folder.path().join("limiter");
    let binary = limiter_binary();
    let script =
        format!("#!/bin/sh\nLIMITER_PROTOCOL_AHEAD=1 exec '{}' \"$@\"\n", binary.display());
    fs::write(&ahead, script).expect("room for a script");
    fs::set_permissions(&ahead, Permissions::from_mode(0o700)).expect("it is this user's");
    let protocol = |hosts: &Hosts, of: usize| {
        wait_for("what a host tells of itself", TIMEOUT, || {
            let report = hosts.peers((of + 1) % 3);
            let mut peers = report["peers"].as_array()?.iter();
            let peer = peers.find(|peer| peer["host"] == tests::hosts::name(of))?;
            peer["details"]["protocol"].as_u64()
        })
    };
    let by_other_protocol = |hosts: &Hosts| {
        let refused = |host| refused(hosts, (host + 1) % 3, host);
        all.map(|host| refused(host).get("protocol").copied().unwrap_or(0))
    };
    let now = protocol(&hosts, 0);
    let (watch, begun) = (Watch::new(&hosts.fleet, SOURCE), Instant::now());
    let sending: Vec<_> = all.map(|host| flood(&hosts.fleet, host, SOURCE, 2.0 * RATE)).into();
    for (binary, expected) in [(ahead.as_path(), now + 1), (binary.as_path(), now)] {
        for host in all {
            assert_eq!(hosts.daemons[host].terminate().code(), Some(0));
            hosts.daemons[host].restart_as(&hosts.fleet.hosts[host], binary);
            hosts.wait_members(&all, 3);
            assert_eq!(protocol(&hosts, host), expected);
            // Until what it had given before the restart has ended.
            seconds(2.0);
        }
        // Who is a version back may be spoken to as before, until all have heard of it.
        let before = by_other_protocol(&hosts);
        assert!(expected == now || before == [0; 3], "{before:?}");
        seconds(1.0);
        assert_eq!(by_other_protocol(&hosts), before);
    }
    let end = begun.elapsed().as_secs_f64();
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(end as u32);
    admitted.assert_kept("an upgrade and back", RATE, BURST);
    let used =
        [(1.0, end), (end - 2.0, end)].map(|(from, to)| admitted.utilisation(RATE, from, to));
    println!("an upgrade and back: {end:.0} s, {used:.3?} of the limit is used, and at last");
    assert!(used[0] > 0.6 && used[1] > 0.9, "{used:?}");
}
