//! The messages of `envoy.service.ratelimit.v3`, and what they mean.
//!
//! Source: `envoyproxy/data-plane-api`, `envoy/service/ratelimit/v3/rls.proto` and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto`. JSON is that of protobuf, with either way to write a name.

use std::collections::BTreeMap;
use std::time::Duration;

use decide::act::Act;
use decide::decider::{Item, Key, RequestError, Status};
use decide::key::Entry;
use model::meter::{Limit, Unit};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, json};

use crate::service::Service;

/// The most descriptors of a request.
const MAX_DESCRIPTORS: usize = 64;

/// The most entries of a descriptor.
const MAX_ENTRIES: usize = 32;

/// The longest key or value, bytes.
const MAX_TEXT: usize = 8 * 1024;

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<Override>,
    // google.protobuf.UInt64Value: its message is that of a number with the tag 1.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "wrapped")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
struct DescriptorEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Override {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "unit_number")]
    unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, optional, tag = "6")]
    dynamic_metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HeaderValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

impl Code {
    const fn new(over: bool) -> Self {
        if over { Self::OverLimit } else { Self::Ok }
    }
}

/// The units by their names and numbers.
const UNITS: [(Unit, &str, i32); 7] = [
    (Unit::Second, "SECOND", 1),
    (Unit::Minute, "MINUTE", 2),
    (Unit::Hour, "HOUR", 3),
    (Unit::Day, "DAY", 4),
    (Unit::Month, "MONTH", 5),
    (Unit::Year, "YEAR", 6),
    (Unit::Week, "WEEK", 7),
];

fn number_of(unit: Unit) -> i32 {
    UNITS.iter().find(|(known, _, _)| *known == unit).map_or(0, |&(_, _, number)| number)
}

/// A number as protobuf writes it in JSON: one of 64 bits is a text.
fn wrapped<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    Ok(match Option::deserialize(from)? {
        None => None,
        Some(Written::Number(number)) => Some(number),
        Some(Written::Text(text)) => Some(text.parse().map_err(serde::de::Error::custom)?),
    })
}

/// A unit by its number or name.
fn unit_number<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(i32),
        Name(String),
    }
    match Written::deserialize(from)? {
        Written::Number(number) => Ok(number),
        Written::Name(name) => {
            let found = UNITS.iter().find(|(_, known, _)| *known == name);
            found.map(|&(_, _, number)| number).ok_or_else(|| {
                serde::de::Error::custom(format!("unit {name:?} is none: give SECOND to YEAR"))
            })
        }
    }
}

/// Why a request has no answer: what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RlsError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("unit {0} of a limit is none: give 1 to 7")]
    Unit(i32),
    #[error(
        "too large: a request has {MAX_DESCRIPTORS} descriptors of {MAX_ENTRIES} entries of {MAX_TEXT} bytes at most"
    )]
    TooLarge,
}

/// Decides on a request. With `headers`, the answer has some for the client of the proxy.
pub(crate) async fn answer(
    service: &Service,
    request: &RateLimitRequest,
    headers: bool,
) -> Result<RateLimitResponse, RlsError> {
    request.check()?;
    let entries: Vec<Vec<Entry<'_>>> = request.descriptors.iter().map(entries_of).collect();
    let items = request.descriptors.iter().zip(&entries).map(|(descriptor, entries)| {
        let cost = descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into());
        let act = match (descriptor.is_negative_hits, cost) {
            (true, _) => Act::Refund,
            (false, 0) => Act::Peek,
            (false, _) => Act::Take,
        };
        let limit = descriptor.limit.as_ref().map(Override::limit).transpose()?;
        Ok(Item { key: Key::Descriptor { domain: &request.domain, entries }, limit, act, cost })
    });
    let items = items.collect::<Result<Vec<_>, RlsError>>()?;
    let decision = service.decide(&items).await?;
    let metadata = metadata(&request.domain, &decision.statuses);
    let statuses: Vec<_> = decision.statuses.iter().map(DescriptorStatus::new).collect();
    Ok(RateLimitResponse {
        overall_code: Code::new(decision.over).into(),
        response_headers_to_add: if headers { headers_of(&statuses) } else { Vec::new() },
        statuses,
        dynamic_metadata: metadata,
    })
}

fn entries_of(descriptor: &RateLimitDescriptor) -> Vec<Entry<'_>> {
    let entries = descriptor.entries.iter();
    entries.map(|entry| (entry.key.as_str(), entry.value.as_str())).collect()
}

impl RateLimitRequest {
    fn check(&self) -> Result<(), RlsError> {
        let is_long =
            |entry: &DescriptorEntry| entry.key.len() > MAX_TEXT || entry.value.len() > MAX_TEXT;
        let is_large = |descriptor: &RateLimitDescriptor| {
            descriptor.entries.len() > MAX_ENTRIES || descriptor.entries.iter().any(is_long)
        };
        let is_too_large = self.descriptors.len() > MAX_DESCRIPTORS
            || self.domain.len() > MAX_TEXT
            || self.descriptors.iter().any(is_large);
        if is_too_large { Err(RlsError::TooLarge) } else { Ok(()) }
    }
}

impl Override {
    fn limit(&self) -> Result<Limit, RlsError> {
        let unit = UNITS.iter().find(|(_, _, number)| *number == self.unit);
        let (unit, _, _) = unit.ok_or(RlsError::Unit(self.unit))?;
        Ok(Limit::new(self.requests_per_unit.into(), unit.duration()))
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl DescriptorStatus {
    fn new(status: &Status) -> Self {
        let current_limit = status.terms.map(|terms| RateLimit {
            requests_per_unit: narrow(terms.limit.requests),
            unit: Unit::of(terms.limit.window).map_or(0, number_of),
            name: status.rule.as_ref().map(|rule| rule.name.clone()).unwrap_or_default(),
        });
        Self {
            code: Code::new(status.over).into(),
            current_limit,
            limit_remaining: narrow(status.remaining),
            duration_until_reset: status.reset.map(|reset| prost_types::Duration {
                seconds: reset.as_secs() as i64,
                nanos: reset.subsec_nanos() as i32,
            }),
        }
    }
}

/// What the client of a proxy is told: of the descriptor that is nearest to its limit.
fn headers_of(statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited =
        statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    let over = i32::from(Code::OverLimit);
    let nearest = limited.min_by_key(|(status, _)| (status.code != over, status.limit_remaining));
    let Some((status, limit)) = nearest else { return Vec::new() };
    let reset = status.duration_until_reset.as_ref();
    let reset = reset.map_or(0, |reset| reset.seconds + i64::from(reset.nanos > 0));
    [
        ("RateLimit-Limit", limit.requests_per_unit.to_string()),
        ("RateLimit-Remaining", status.limit_remaining.to_string()),
        ("RateLimit-Reset", reset.to_string()),
    ]
    .map(|(key, value)| HeaderValue { key: key.into(), value })
    .into()
}

/// What the rules of those that passed tell, if they tell something.
fn metadata(domain: &str, statuses: &[Status]) -> Option<Struct> {
    let passed = statuses.iter().filter(|status| !status.over);
    let mut merged = Map::new();
    for rule in passed.filter_map(|status| status.rule.as_ref()) {
        merge(&mut merged, &rule.metadata);
    }
    (!merged.is_empty()).then(|| {
        let of = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
        let metadata = Value { kind: Some(Kind::StructValue(as_struct(&merged))) };
        let fields = [("domain".into(), of(domain)), ("metadata".into(), metadata)];
        Struct { fields: BTreeMap::from(fields) }
    })
}

/// Adds what is not there yet; maps in both become one.
fn merge(into: &mut Map<String, serde_json::Value>, from: &Map<String, serde_json::Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(serde_json::Value::Object(into)), serde_json::Value::Object(from)) => {
                merge(into, from);
            }
            (Some(_), _) => {}
            (None, _) => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

fn as_struct(map: &Map<String, serde_json::Value>) -> Struct {
    Struct { fields: map.iter().map(|(name, value)| (name.clone(), as_value(value))).collect() }
}

fn as_value(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Json::String(value) => Kind::StringValue(value.clone()),
        Json::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(as_value).collect() })
        }
        Json::Object(map) => Kind::StructValue(as_struct(map)),
    };
    Value { kind: Some(kind) }
}

impl RateLimitResponse {
    /// Whether the request is over a limit.
    pub(crate) fn is_over(&self) -> bool {
        self.overall_code == i32::from(Code::OverLimit)
    }

    /// As protobuf writes it in JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let code = |code: i32| if code == i32::from(Code::OverLimit) { "OVER_LIMIT" } else { "OK" };
        let statuses = self.statuses.iter().map(|status| {
            let mut object = Map::new();
            object.insert("code".into(), code(status.code).into());
            if let Some(limit) = &status.current_limit {
                let unit = UNITS.iter().find(|(_, _, number)| *number == limit.unit);
                let unit = unit.map_or("UNKNOWN", |&(_, name, _)| name);
                let requests = limit.requests_per_unit;
                let mut limit_json = json!({ "requestsPerUnit": requests, "unit": unit });
                if !limit.name.is_empty() {
                    limit_json["name"] = limit.name.as_str().into();
                }
                object.insert("currentLimit".into(), limit_json);
            }
            object.insert("limitRemaining".into(), status.limit_remaining.into());
            if let Some(reset) = &status.duration_until_reset {
                let reset = Duration::new(reset.seconds as u64, reset.nanos as u32);
                let text = format!("{}s", reset.as_secs_f64());
                object.insert("durationUntilReset".into(), text.into());
            }
            serde_json::Value::Object(object)
        });
        let statuses: Vec<_> = statuses.collect();
        let mut answer = json!({ "overallCode": code(self.overall_code), "statuses": statuses });
        if !self.response_headers_to_add.is_empty() {
            let headers = self.response_headers_to_add.iter();
            let headers = headers.map(|header| json!({ "key": header.key, "value": header.value }));
            answer["responseHeadersToAdd"] = headers.collect();
        }
        answer
    }
}
