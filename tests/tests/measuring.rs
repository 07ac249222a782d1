//! What a packet costs: as the dashboard tells it, if the kernel measures it, and what that measuring costs
//! itself.

use std::net::Ipv4Addr;

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Flood, Lab, Program, Sources, frame,
    machine::{Machine, median},
    measuring::Measuring,
    process,
    program::stay_on_cpu,
    v4,
};

const ADDRESS: &str = "127.0.0.1:9090";

/// What the dashboard is told of the cost, three times: first without rates, then with.
fn costs(lab: &Lab) -> Vec<Value> {
    let mut curl = lab.receiver.command(&tools::CURL);
    // It ends by its time, which is no success.
    curl.args(["-sN", "--max-time", "4.5", &format!("http://{ADDRESS}/v1/live")]);
    let output = process::output(&mut curl);
    let text = String::from_utf8_lossy(&output.stdout);
    let reports = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let costs = reports.map(|report| {
        let report: Value = serde_json::from_str(report).expect("a report is JSON");
        report["cost"].clone()
    });
    let costs: Vec<_> = costs.collect();
    assert!(costs.len() >= 3, "{text}");
    costs
}

#[test]
fn the_dashboard_tells_what_a_packet_costs_where_the_kernel_measures_it() {
    let mut measuring = Measuring::hold();
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--http-listen", ADDRESS]));
    daemon.cli().limit("1000pps", Some("2000"), None);
    let crowd = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), 10_000);
    let flooding = Flood::new(crowd, u64::MAX).at_rate(200_000).start(&lab);
    measuring.switch(false);
    for cost in costs(&lab) {
        assert!(cost["ns_per_packet"].is_null(), "{cost}");
        let hint = cost["hint"].as_str().unwrap_or_default();
        assert!(
            hint.contains("sysctl kernel.bpf_stats_enabled=1") && hint.contains(" ns"),
            "{cost}"
        );
    }
    measuring.switch(true);
    let measured = costs(&lab);
    println!("{measured:?}");
    for cost in &measured[1..] {
        let ns = cost["ns_per_packet"].as_f64().unwrap_or_default();
        assert!(ns > 0.0 && ns < 10_000.0 && cost["hint"].is_null(), "{cost}");
    }
    measuring.switch(false);
    let after = costs(&lab);
    let last = after.last().expect("reports");
    assert!(last["ns_per_packet"].is_null() && last["hint"].is_string(), "{after:?}");
    let _flooded = flooding.stop();
    daemon.assert_accounted(&lab);
}

#[test]
fn measuring_costs_each_packet_some_ns() {
    const ROUNDS: usize = 11;
    const REPEAT: u32 = 300_000;
    let mut measuring = Measuring::hold();
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1000pps", Some("2000"), None);
    let Machine { processor, cpus, virtual_machine, kernel, .. } = Machine::read();
    println!("{processor}, {cpus} CPUs, virtual: {virtual_machine}, Linux {kernel}");
    stay_on_cpu();
    let program = Program::new(&daemon);
    // The one is far over its limit, the other within it.
    daemon.cli().limit("1gpps", None, Some(&v4(2).to_string()));
    for (what, source) in [("dropped", v4(1)), ("passed", v4(2))] {
        let frame = frame::udp(source, 64);
        let _warm = program.ns(&frame, REPEAT);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (on, times) in [(false, &mut without), (true, &mut with)] {
                measuring.switch(on);
                times.push(f64::from(program.ns(&frame, REPEAT)));
            }
        }
        let (without, with) = (median(&without), median(&with));
        println!("{what}: {without} ns, {with} while it is measured: {} more", with - without);
        assert!(with > without && with - without < 1000.0, "{without} and {with} ns");
    }
}
