//! The harness sends at the rate that it says, as far as the machine can.

use tests::{Bystander, Lab, Sender, Sent, Stream, frame, v4, v6};

const RATE: f64 = 25_000.0;
/// A machine that does something else for a moment makes a sender late, so it may try again.
const TRIES: usize = 5;

#[test]
fn one_sender_reaches_100_kpps() {
    let lab = Lab::new(1);
    let _drop = Bystander::dropping(&lab);
    let stream = |host| Stream::new(frame::udp(v4(host), 64), RATE, RATE as u64);
    let reached = (1..=TRIES as u64).any(|tries| {
        let sent = Sender::new(&lab).send((1..=4).map(stream).collect());
        lab.assert_received(tries * 100_000);
        let rates: Vec<_> = sent.iter().map(Sent::rate).collect();
        println!("{rates:.0?} pps");
        assert!(rates.iter().all(|&rate| rate < 1.02 * RATE), "{rates:?}");
        rates.iter().all(|&rate| rate > 0.98 * RATE)
    });
    assert!(reached, "100 kpps in none of {TRIES} tries");
}

#[test]
fn a_stream_keeps_its_rate_beside_others() {
    let lab = Lab::new(1);
    let _drop = Bystander::dropping(&lab);
    let kept = (0..TRIES).any(|_| {
        let sent = Sender::new(&lab).send(vec![
            Stream::new(frame::udp(v4(1), 64), 20_000.0, 20_000),
            Stream::new(frame::udp(v4(2), 1514), 100.0, 100).with_burst(50),
            Stream::new(frame::tcp_syn(v6(1, 1)), 500.0, 500),
        ]);
        println!("{:.0} pps", sent[0].rate());
        (sent[0].rate() - 20_000.0).abs() < 200.0
    });
    assert!(kept, "20,000 pps in none of {TRIES} tries");
}
