//! What packets are for, while somebody asks: counted from samples that the kernel program picks by
//! chance.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use limiter_common::abi::Reason;
use limiter_common::packet::{Network, network, transport};

use super::handle::CoreHandle;
use api::error::Failure;
use api::{PortCounts, PortsReport};
use model::Class;
use model::class::{Kind, Ports, TCP, UDP};
use model::sample::{PacketSample, SampleFilter};
use telemetry::Sample;

/// How long the rate of all packets is measured before, so that samples are as many as wanted.
const BEFORE: Duration = Duration::from_millis(200);

/// Samples in a second that are wanted: a port with a hundredth of all packets is told within a tenth of
/// that after two seconds.
const WANTED: u32 = 4000;

/// Between two fetches.
const PAUSE: Duration = Duration::from_millis(50);

/// What a packet is for.
fn port_of(sample: &PacketSample) -> Class {
    let any = Class::ANY;
    let frame = sample.frame();
    let Network::Ip(ip) = network(&frame) else { return any };
    let Some(above) = transport(&frame, &ip) else { return any };
    let has_port = above.has_ports && matches!(above.protocol, TCP | UDP);
    let port = above.destination_port;
    let kind = (has_port && port > 0).then_some(Kind::To(Ports { first: port, last: port }));
    Class { protocol: Some(above.protocol), kind, ..any }
}

/// Counts packets by protocol and destination port for about the time `over`, and tells the `n` heaviest.
///
/// # Errors
/// If somebody captures, or the data plane cannot be read.
pub async fn ports(shared: &CoreHandle, n: usize, over: Duration) -> Result<PortsReport, Failure> {
    let first = shared.with(|core| core.sample()).await?;
    tokio::time::sleep(BEFORE).await;
    let second = shared.with(|core| core.sample()).await?;
    let pps = all(&second).saturating_sub(all(&first)) as f64 / BEFORE.as_secs_f64();
    let filter = SampleFilter {
        reasons: Reason::ALL.to_vec(),
        source: None,
        // Only if there are many more packets than a moment before.
        rate: 4 * WANTED,
        snaplen: 128,
        share: if pps > 0.0 { (f64::from(WANTED) / pps).min(1.0) } else { 1.0 },
    };
    let id = shared.with(move |core| core.captures.start(&mut core.rules, &filter)).await?.id;
    let start = Instant::now();
    let mut seen: HashMap<Class, PortCounts> = HashMap::new();
    let mut matched = 0;
    while start.elapsed() < over {
        tokio::time::sleep(PAUSE).await;
        let mut taken = seen;
        let fetched = shared.with(move |core| {
            let counts = core.captures.fetch(&mut core.rules, id, &mut |sample, _| {
                let seen = taken.entry(port_of(&sample)).or_default();
                let count =
                    if sample.reason.passes() { &mut seen.passed } else { &mut seen.dropped };
                *count += 1;
                seen.bytes += u64::from(sample.length);
            })?;
            Ok((taken, counts))
        });
        let ([so_far, _], counted) = {
            let (counted, counts) = fetched.await?;
            (counts, counted)
        };
        matched = so_far;
        seen = counted;
    }
    let seconds = start.elapsed().as_secs_f64();
    shared.with(move |core| core.captures.stop(&mut core.rules, id)).await?;
    Ok(PortsReport::new(&seen, matched, seconds, n))
}

/// All packets.
fn all(sample: &Sample) -> u64 {
    sample.verdicts().iter().map(|tally| tally.packets).sum()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn sample(data: Vec<u8>) -> PacketSample {
        PacketSample {
            time: SystemTime::UNIX_EPOCH,
            reason: Reason::Conforming,
            length: 60,
            ifindex: 1,
            source: None,
            limit: None,
            starts_at_ip: false,
            data,
        }
    }

    /// An IPv4 packet in Ethernet.
    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12] = 8;
        let length = 20 + payload.len() as u8;
        frame.extend([0x45, 0, 0, length, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_packet_is_for_its_port() {
        let udp = ipv4(17, &[0x10, 0, 0, 53, 0, 8, 0, 0]);
        assert_eq!(port_of(&sample(udp)).to_string(), "udp:53");
        let icmp = ipv4(1, &[8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(port_of(&sample(icmp)).to_string(), "icmp");
        assert_eq!(port_of(&sample(vec![0; 60])), Class::ANY);
    }
}
