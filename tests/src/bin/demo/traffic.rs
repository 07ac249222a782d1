//! Who sends what, and under which limit.

use std::net::IpAddr;

use tests::{Stream, frame, v4, v6};

/// Seconds of traffic.
pub(crate) const SECONDS: u64 = 5;
/// What sources above their limit send at most while somebody looks around, frames a second.
pub(crate) const MAX_BACKGROUND_RATE: f64 = 2500.0;

/// The source port of frames that are sent in this second, counted from 0.
// The frame carries its second: when it was seen says little, as frames wait in queues.
pub(crate) fn port(second: usize) -> u16 {
    40_000 + second as u16
}

/// The source of the flood.
pub(crate) fn flood() -> IpAddr {
    v4(66)
}

/// A source of traffic.
pub(crate) struct Actor {
    /// Its address.
    pub(crate) source: IpAddr,
    /// What it does, for people.
    pub(crate) role: &'static str,
    /// Whether it keeps to its limit.
    pub(crate) conforming: bool,
    /// Length of its frames in bytes, Ethernet header included.
    pub(crate) length: usize,
    /// The limit that is set before it sends, if it brings one.
    pub(crate) limit: Option<Order>,
    rate: f64,
    /// Frames sent at once at the start.
    burst: u64,
}

/// A limit to be set.
pub(crate) struct Order {
    rate: &'static str,
    burst: Option<&'static str>,
    target: Option<String>,
}

impl Order {
    /// Arguments of the client.
    pub(crate) fn arguments(&self) -> Vec<&str> {
        let mut arguments = vec!["limit", "set", self.rate];
        arguments.extend(self.burst.iter().flat_map(|burst| ["--burst", burst]));
        arguments.extend(self.target.iter().flat_map(|target| ["--for", target]));
        arguments
    }
}

impl Actor {
    fn new(source: IpAddr, role: &'static str, rate: f64) -> Self {
        Self { source, role, conforming: true, length: 128, limit: None, rate, burst: 1 }
    }

    /// Its frames for [`SECONDS`]. Those of each second have a [`port`] of their own.
    pub(crate) fn stream(&self) -> Stream {
        let count = self.burst - 1 + (self.rate * SECONDS as f64) as u64;
        let frame = |second| frame::udp_from(self.source, self.length, port(second));
        let frames = (0..SECONDS as usize).map(frame).collect();
        Stream::by_second(frames, self.rate, count).with_burst(self.burst)
    }

    /// Its frames for so many seconds in which somebody looks around.
    pub(crate) fn background(&self, seconds: u64) -> Stream {
        let rate = if self.conforming { self.rate } else { self.rate.min(MAX_BACKGROUND_RATE) };
        let count = (rate * seconds as f64) as u64;
        Stream::new(frame::udp(self.source, self.length), rate, count)
    }
}

/// All sources. The flood carries the default limit, which applies to whoever has no other.
pub(crate) fn actors() -> Vec<Actor> {
    let order = |rate, burst, target| Some(Order { rate, burst, target });
    vec![
        Actor {
            conforming: false,
            limit: order("1000pps", Some("2000"), None),
            ..Actor::new(flood(), "flood", 25_000.0)
        },
        Actor {
            conforming: false,
            length: 1400,
            limit: order("10mbit", None, Some(v4(67).to_string())),
            ..Actor::new(v4(67), "large frames", 3000.0)
        },
        // Most of the burst at once, then most of the rate: it conforms, so not a frame may be lost (P1).
        Actor { burst: 1500, ..Actor::new(v4(10), "burst, then 900 pps", 900.0) },
        Actor::new(v4(11), "100 pps", 100.0),
        Actor::new(v4(12), "2 pps", 2.0),
        Actor::new(v6(1, 1), "IPv6, 800 pps", 800.0),
        Actor {
            limit: order("3000pps", Some("3000"), Some("2001:db8:7:2::/64".to_owned())),
            ..Actor::new(v6(2, 1), "IPv6 with a higher limit", 2900.0)
        },
    ]
}
