//! Who sends what, and under which limit.

use std::net::IpAddr;

use tests::{Stream, frame, v4, v6};

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

    /// Its frames for this many seconds.
    pub(crate) fn stream(&self, seconds: u64) -> Stream {
        let count = self.burst - 1 + (self.rate * seconds as f64) as u64;
        Stream::new(frame::udp(self.source, self.length), self.rate, count).with_burst(self.burst)
    }
}

/// All sources. The flood carries the default limit, which applies to whoever has no other.
pub(crate) fn actors() -> Vec<Actor> {
    let order = |rate, burst, target| Some(Order { rate, burst, target });
    vec![
        Actor {
            conforming: false,
            limit: order("1000pps", Some("2000"), None),
            ..Actor::new(v4(66), "flood", 25_000.0)
        },
        Actor {
            conforming: false,
            length: 1400,
            limit: order("10mbit", None, Some(v4(67).to_string())),
            ..Actor::new(v4(67), "large frames", 3000.0)
        },
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
