//! Things that happen, as `limiter monitor` tells them.

use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Something that happened. As JSON, one object: `time`, `event`, and what belongs to that event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, RFC 3339.
    #[serde(with = "humantime_text")]
    pub time: SystemTime,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// Something that happens now.
    pub fn now(what: What) -> Self {
        Self { time: SystemTime::now(), what }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A packet of a source was dropped for the first time since the source got its bucket.
    Limited {
        /// The source.
        source: IpNet,
        /// The limit, as an operator writes it; `None` if it has changed since.
        limit: Option<String>,
    },
    /// No bucket was free for a source.
    SetFull {
        /// The source.
        source: IpNet,
    },
}

/// A moment as text.
mod humantime_text {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_event_is_one_object() {
        let source = "198.51.100.7/32".parse().unwrap();
        let what = What::Limited { source, limit: Some("100pps".into()) };
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let event = Event { time, what };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"time":"1970-01-01T00:00:01.500Z","event":"limited","source":"198.51.100.7/32","limit":"100pps"}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
