//! A limit of a cluster that is exceeded, as nothing but a mistake can do it: a host's state directory is put
//! back to what it was before it had given rights away. It has to be seen.

use std::{fs, net::Ipv4Addr, time::Duration};

use serde_json::Value;
use tests::{api, hosts::Hosts, process::wait_for};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// The value of a sample of the limit of all sources.
fn metric(hosts: &Hosts, host: usize, name: &str) -> Option<f64> {
    let (_, metrics) = api::get(&hosts.daemons[host].socket(), "/metrics", "text/plain");
    let start = format!("{name}{{limit=\"default\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.parse().expect("a number"))
}

fn overage(report: &Value) -> Option<f64> {
    report["overage"][0]["ratio"].as_f64()
}

fn warns(report: &Value) -> bool {
    report["warnings"].to_string().contains("of the limit for default through")
}

#[test]
fn a_state_directory_that_goes_back_is_seen_by_what_all_let_through() {
    let mut hosts = Hosts::start(1, &[]);
    let file = hosts.daemons[0].state_folder().join("cluster.json");
    let whole = wait_for("the founder to have all rights", PATIENCE, || {
        (hosts.kept(0)["state"]["home"].as_u64()? > 0).then(|| fs::read(&file).expect("the file"))
    });
    hosts.join(&[]);
    hosts.join(&[]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    hosts.daemons[1].cli().ok(&["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"]);
    hosts.wait_limit(&all, "3000pps");
    hosts.wait_even(&all);

    // As long as nothing is wrong none of it is told.
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.map(|host| hosts.send(host, SOURCE, 4000.0)).into();
    wait_for("the limit to be judged", PATIENCE, || {
        let ratio = metric(&hosts, 2, "limiter_cluster_overage_ratio")?;
        assert!(ratio <= 1.02, "{ratio} of the limit");
        // It is counted so that it never says too much: all of the limit may be three quarters of that.
        (ratio > 0.7).then_some(())
    });
    let status = hosts.daemons[2].cli().run(&["status"]);
    assert!(status.code == 0 && !warns(&status.json), "{status:?}");
    sending.into_iter().for_each(|sending| drop(sending.stop()));
    watch.stop().assert_kept("before", RATE, 300.0);

    hosts.kill(0);
    fs::write(&file, whole).expect("the file can be written");
    hosts.restart(0);
    hosts.wait_members(&all, 3);
    let homes: f64 = all.iter().map(|&host| hosts.home(host)).sum();
    println!("home rights of all hosts: {homes:.3}");
    assert!(homes > 1.6, "{homes}");

    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.map(|host| hosts.send(host, SOURCE, 4000.0)).into();
    for host in all {
        let (ratio, bound) = wait_for("the overage", PATIENCE, || {
            let ratio = metric(&hosts, host, "limiter_cluster_overage_ratio")?;
            let bound = metric(&hosts, host, "limiter_cluster_overage_bound_ratio")?;
            // What the alert rule asks for.
            (ratio > 1.02 * bound).then_some((ratio, bound))
        });
        println!("{}: {ratio:.3} of the limit, {bound} may be", tests::hosts::name(host));
        assert_eq!(bound, 1.0);
        let told = wait_for("status and peers to tell of it", PATIENCE, || {
            let told = ["status", "peers"].map(|what| hosts.daemons[host].cli().run(&[what]));
            let seen = told.iter().all(|it| overage(&it.json) > Some(1.02) && warns(&it.json));
            seen.then_some(told)
        });
        assert_eq!((told[0].code, &told[0].json["state"]), (1, &"degraded".into()), "{told:?}");
        assert!(told[1].json["home"].as_f64() > Some(1.6), "{told:?}");
    }
    sending.into_iter().for_each(|sending| drop(sending.stop()));
    let admitted = watch.stop();
    let most = admitted.busiest() as f64;
    println!("{most} packets in the busiest second, {:.2} of {RATE}", most / RATE);
    assert!(most > 1.1 * (RATE + 300.0), "nothing was exceeded: {most}");
}
