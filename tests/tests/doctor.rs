//! `limiter doctor` looks at the machine and at an interface without a daemon, and changes nothing.

use std::time::Duration;

use serde_json::Value;
use tests::{
    Bystander, Daemon, Lab,
    cli::{Answer, answer, limiter_binary},
    lab::RX,
    leftovers::mount_bpf,
    offload::{self, Offload},
    process, require_root,
};

/// Runs `limiter doctor` in the receiving namespace.
fn doctor(lab: &Lab, arguments: &[&str]) -> Answer {
    let answer =
        answer(lab.receiver.own(limiter_binary()).args(["--json", "doctor"]).args(arguments));
    let worst = answer.json["state"].as_str().unwrap_or_default();
    assert_eq!(answer.code, i32::from(worst != "ok"), "{answer:#?}");
    for check in answer.json["checks"].as_array().into_iter().flatten() {
        assert_eq!(check["remedy"].is_string(), check["state"] != "ok", "{check}");
    }
    answer
}

/// The check of this name.
#[track_caller]
fn check<'a>(answer: &'a Answer, name: &str) -> &'a Value {
    let mut checks = answer.json["checks"].as_array().into_iter().flatten();
    let found = checks.find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {:#}", answer.json))
}

#[track_caller]
fn assert_check(answer: &Answer, name: &str, state: &str, about: &str) {
    let check = check(answer, name);
    assert_eq!(check["state"], state, "{check}");
    assert!(check["found"].as_str().is_some_and(|found| found.contains(about)), "{check}");
}

#[test]
fn this_machine_serves() {
    require_root();
    mount_bpf();
    let answer = answer(tools::own(limiter_binary()).args(["--json", "doctor"]));
    for name in ["kernel", "capabilities", "verifier", "bpffs"] {
        assert_eq!(check(&answer, name)["state"], "ok", "{:#}", answer.json);
    }
    assert_check(&answer, "verifier", "ok", "takes the kernel program");
    assert!(answer.json["interface"].is_null());
}

#[test]
fn an_interface_is_examined_without_touching_it() {
    let lab = Lab::new(2);
    let found = doctor(&lab, &[RX]);
    assert_eq!(found.json["interface"], RX);
    assert_check(&found, "interface", "ok", "veth");
    assert_check(&found, "native-xdp", "ok", "veth");
    assert_check(&found, "mtu", "ok", "1500");
    assert_check(&found, "lro", "ok", "off");
    assert_check(&found, "gro", "ok", "off");
    assert_check(&found, "xdp-program", "ok", "none");
    assert_check(&found, "queues", "ok", "2 for");
    assert_check(&found, "missed", "ok", "no frame");
    let link = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&link).expect("ip prints JSON");
    assert!(links[0]["xdp"].is_null(), "nothing is attached: {link}");
}

#[test]
fn what_is_wrong_with_an_interface_is_told_with_a_remedy() {
    let lab = Lab::new(1);
    process::run(lab.receiver.ip(&["link", "set", RX, "mtu", "9000"]));
    offload::set(&lab.receiver, RX, Offload::Gro, true);
    let found = doctor(&lab, &[RX]);
    assert_check(&found, "mtu", "ok", "9000, frames in several buffers");
    assert_check(&found, "gro", "ok", "after native mode");
    process::run(lab.receiver.ip(&["link", "set", RX, "down"]));
    let found = doctor(&lab, &[RX]);
    assert_check(&found, "interface", "warn", "down");
    assert_eq!(found.code, 1);
    // A bridge has no native XDP.
    process::run(lab.receiver.ip(&["link", "add", "br0", "type", "bridge"]));
    let found = doctor(&lab, &["br0"]);
    assert_check(&found, "native-xdp", "warn", "bridge");
    let found = doctor(&lab, &["eth99"]);
    assert_check(&found, "interface", "fail", "eth99");
    let remedy = check(&found, "interface")["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains(RX), "the names that exist: {remedy}");
}

#[test]
fn a_program_on_the_interface_is_known() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    assert_check(&doctor(&lab, &[RX]), "xdp-program", "ok", "limiter, id ");
    drop(daemon);
    process::wait_for("a free interface", Duration::from_secs(5), || {
        (check(&doctor(&lab, &[RX]), "xdp-program")["found"] == "none").then_some(())
    });
    let other = Bystander::passing(&lab);
    let found = doctor(&lab, &[RX]);
    assert_check(
        &found,
        "xdp-program",
        "warn",
        &format!("id {} (pass), native, held by e2e", other.id()),
    );
}

#[test]
fn without_privileges_it_says_which_are_missing() {
    let lab = Lab::new(1);
    let mut command = lab.receiver.command(&tools::SETPRIV);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    let found = answer(command.arg("--").arg(limiter_binary()).args(["--json", "doctor", RX]));
    assert_eq!(found.code, 1, "{found:#?}");
    assert_check(&found, "capabilities", "fail", "CAP_BPF");
    assert_check(&found, "verifier", "warn", "not asked");
    assert_check(&found, "native-xdp", "ok", "veth");
}
