//! Members on a virtual network.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use cluster::HostId;
use cluster::membership::{Event, Identity, Membership};

use crate::members::{Net, identity};
use crate::{Conditions, Span};

/// A net whose frames take 1 to 5 ms, and one of `loss` is lost.
fn net(loss: f64) -> Net {
    let span = |ms| Span(Duration::from_millis(ms));
    let conditions = Conditions { delay: span(1), jitter: span(4), loss, ..Conditions::default() };
    Net::new(conditions, 7)
}

fn until(net: &mut Net, most: Duration, is: impl Fn(usize, &Membership) -> bool) -> Duration {
    net.until(most, is).unwrap_or_else(|others| {
        panic!("not within {most:?}, hosts and the members that they know: {others:?}")
    })
}

/// So many hosts that know each other; how long that took.
fn cluster(count: usize, loss: f64) -> (Net, Duration) {
    let mut net = net(loss);
    let took = net.start_all(count).unwrap_or_else(|others| panic!("not all: {others:?}"));
    (net, took)
}

/// What a host sends in a second.
fn rate(net: &mut Net) -> (u64, u64) {
    let (sent, bytes) = (net.sent, net.bytes);
    net.run(Duration::from_secs(10));
    let hosts = net.living().count() as u64 * 10;
    ((net.sent - sent) / hosts, (net.bytes - bytes) / hosts)
}

/// Whether two are the same to the last renewal.
fn are_one(hosts: &Net) -> bool {
    let mut views = hosts.living().map(|(_, host)| Arc::clone(host.members()));
    let first = views.next();
    views.all(|view| Some(view) == first)
}

/// Everything that may happen to so many members; the figures.
fn ordeal(count: usize, loss: f64) -> Vec<(&'static str, Duration)> {
    let mut figures = Vec::new();
    let (mut net, took) = cluster(count, loss);
    figures.push(("all start at once", took));
    net.run(Duration::from_secs(30));
    assert!(are_one(&net));
    let (packets, bytes) = rate(&mut net);
    println!("{count} members at rest: {packets} packets, {bytes} bytes a second and host");

    net.start(count, identity(count, 2));
    net.meet(count, count / 2);
    net.meet(count, 0);
    let took =
        until(&mut net, Duration::from_secs(20), |_, host| host.members().len() == count + 1);
    figures.push(("one joins", took));

    net.run(Duration::from_secs(10));
    let gone = [identity(3, 1).host(), identity(7, 1).host()];
    net.hosts[3] = None;
    net.hosts[7] = None;
    let patience = Duration::from_secs(30);
    let is_gone = |host: &Membership| gone.iter().all(|gone| !host.members().contains_key(gone));
    let took = until(&mut net, patience, |_, host| is_gone(host));
    assert!(net.living().all(|(_, host)| host.members().len() == count - 1));
    figures.push(("two crash", took));

    net.start(3, identity(3, 50));
    net.meet(3, 0);
    net.meet(3, 1);
    let back = identity(3, 50);
    let took = until(&mut net, patience, |_, host| host.members().get(&back.host()) == Some(&back));
    figures.push(("one comes back", took));

    // So soon that nobody has noticed.
    net.run(Duration::from_secs(10));
    net.start(5, identity(5, 60));
    net.meet(5, 0);
    net.meet(5, 1);
    let back = identity(5, 60);
    let took = until(&mut net, patience, |_, host| host.members().get(&back.host()) == Some(&back));
    figures.push(("one starts again", took));

    net.run(Duration::from_secs(10));
    let present = net.living().count();
    let cut = count * 2 / 5;
    net.cut = Some(cut);
    let low = net.living().filter(|(number, _)| *number < cut).count();
    let sizes = move |number: usize| if number < cut { low } else { present - low };
    let took = until(&mut net, Duration::from_secs(60), |number, host| {
        host.members().len() == sizes(number)
    });
    figures.push(("the network is cut", took));
    net.run(Duration::from_secs(20));
    net.cut = None;
    let took = until(&mut net, Duration::from_secs(120), |_, host| host.members().len() == present);
    figures.push(("it is whole again", took));

    net.run(Duration::from_secs(40));
    assert!(net.living().all(|(_, host)| host.members().len() == present));
    let host = net.hosts[10].as_mut().unwrap();
    host.leave(net.now);
    net.collect(10);
    net.hosts[10] = None;
    let left = identity(10, 1).host();
    let took = until(&mut net, patience, |_, host| !host.members().contains_key(&left));
    figures.push(("one leaves", took));
    for (what, took) in &figures {
        println!("{count} members, {:>2.0} % lost, {what}: {took:?}", loss * 100.0);
    }
    figures
}

fn assert_within(figures: &[(&str, Duration)], what: &str, most: Duration) {
    let took = figures.iter().find(|figure| figure.0 == what).unwrap().1;
    assert!(took <= most, "{what}: {took:?}");
}

#[test]
fn a_hundred_members_know_who_is_there() {
    let figures = ordeal(100, 0.02);
    for what in ["all start at once", "one joins", "one comes back", "one starts again"] {
        assert_within(&figures, what, Duration::from_secs(5));
    }
    assert_within(&figures, "two crash", Duration::from_secs(10));
    assert_within(&figures, "one leaves", Duration::from_secs(5));
    assert_within(&figures, "the network is cut", Duration::from_secs(20));
    assert_within(&figures, "it is whole again", Duration::from_secs(60));
}

#[test]
#[ignore = "takes minutes: cargo test -p limiter-user --lib -- --ignored thousand --nocapture"]
fn a_thousand_members_know_who_is_there() {
    let figures = ordeal(1000, 0.0);
    for what in ["all start at once", "one joins", "one comes back", "one starts again"] {
        assert_within(&figures, what, Duration::from_secs(5));
    }
    assert_within(&figures, "two crash", Duration::from_secs(10));
}

#[test]
fn nobody_is_lost_where_every_twentieth_packet_is() {
    let (mut net, _) = cluster(20, 0.05);
    while net.hosts[4].as_mut().unwrap().event().is_some() {}
    net.run(Duration::from_secs(120));
    let mut lost = 0;
    while let Some(event) = net.hosts[4].as_mut().unwrap().event() {
        lost += u32::from(matches!(event, Event::Down(_)));
    }
    assert_eq!(lost, 0);
}

#[test]
fn of_two_hosts_of_one_name_the_first_keeps_it() {
    let (mut net, _) = cluster(5, 0.0);
    let first = identity(2, 1);
    let mut second = identity(2, 9);
    second.address = ([10, 9, 9, 9], 7946).into();
    assert_eq!(first.host(), second.host());
    net.start(5, second.clone());
    net.meet(5, 0);
    let host = first.host();
    let conflict = |host: HostId, first: &Identity, second: &Identity, of: &Membership| {
        of.members().get(&host) == Some(first) && of.refused().get(&host) == Some(second)
    };
    let took = until(&mut net, Duration::from_secs(5), |_, of| conflict(host, &first, &second, of));
    println!("two hosts of one name are noticed after {took:?}");
    for number in [0, 2, 5] {
        let of = net.hosts[number].as_mut().unwrap();
        let told: Vec<_> = std::iter::from_fn(|| of.event()).collect();
        let conflict = Event::Conflict { kept: first.clone(), refused: second.clone() };
        assert!(told.contains(&conflict), "{number}: {told:?}");
    }
    // The first one goes; then the other one is let in.
    net.hosts[2] = None;
    let took = until(&mut net, Duration::from_secs(10), |_, of| {
        of.members().get(&host) == Some(&second) && of.refused().is_empty()
    });
    println!("the second one is let in after {took:?}");
}

#[test]
fn a_weight_is_told_to_all() {
    let (mut net, _) = cluster(8, 0.0);
    let now = net.now;
    net.hosts[6].as_mut().unwrap().set_weight(now, 250);
    net.collect(6);
    let host = identity(6, 1).host();
    until(&mut net, Duration::from_secs(5), |_, of| of.members()[&host].weight == 250);
    net.run(Duration::from_secs(5));
    assert!(net.living().all(|(_, host)| host.members().len() == 8));
}

#[test]
fn a_host_that_hung_is_let_in_again() {
    let (mut net, _) = cluster(8, 0.0);
    let hung = net.hosts[6].take();
    let host = identity(6, 1).host();
    until(&mut net, Duration::from_secs(10), |_, of| !of.members().contains_key(&host));
    net.hosts[6] = hung;
    net.due.push(Reverse((net.now, 6)));
    let took = until(&mut net, Duration::from_secs(30), |_, of| of.members().len() == 8);
    println!("a host that hung is back after {took:?}");
}
