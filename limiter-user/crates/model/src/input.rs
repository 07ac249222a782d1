//! A limit as commands, requests, files and lists word it.

use super::ban::BanText;
use super::invalid::Invalid;
use super::scope::{Partition, Reach, Scope};
use super::units::{Rate, Unit, UnitError, parse_burst};
use crate::limit::{Limit, ModelError, Target};

/// What is said of a limit, beside its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInput<'a> {
    /// One rate, or one of packets and one of bytes.
    pub rates: Vec<&'a str>,
    /// A burst for each at the most; which one it is for is told by its unit.
    pub bursts: Vec<&'a str>,
    /// Whether what is over the limit is dropped.
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    pub ban: Option<BanText<'a>>,
    /// Where it holds; on this host alone if that is not said.
    pub scope: Option<Reach>,
    /// What becomes of the shares of hosts that cannot be reached; they stay idle if that is not said.
    pub partition: Option<Partition>,
}

/// What is wrong with a limit: one of its rates or bursts by its number, the ban, where it holds, or for
/// whom it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A rate.
    Rate(usize),
    /// A burst.
    Burst(usize),
    /// The ban.
    Ban,
    /// The scope.
    Scope,
    /// The target.
    Target,
}

/// A refusal, and what is to blame.
type Refused = (Part, Invalid);

fn refuse(part: Part, message: impl Into<String>, hint: &str) -> Refused {
    (part, Invalid::new(message).with_hint(hint))
}

impl LimitInput<'_> {
    /// The limit of `target` that is meant.
    ///
    /// # Errors
    /// What cannot be read, or does not go together.
    pub fn limit(&self, target: Target) -> Result<Limit, (Part, Invalid)> {
        let mut rates = Vec::with_capacity(2);
        for (place, text) in self.rates.iter().enumerate() {
            let rate: Rate =
                text.parse().map_err(|error: UnitError| (Part::Rate(place), error.into()))?;
            if rates.iter().any(|other: &Rate| other.unit() == rate.unit()) {
                return Err(refuse(
                    Part::Rate(place),
                    format!("{} and {rate} both count {}", rates[0], rate.unit().name()),
                    "give one rate of packets and one of bytes, for instance 1000pps and 10mbit",
                ));
            }
            rates.push(rate);
        }
        let bursts = self.bursts(&rates)?;
        let [first, also] = [0, 1].map(|place| {
            let burst = bursts.iter().copied().find(|(_, of, _)| *of == place);
            rates.get(place).map(|rate| (*rate, burst))
        });
        let Some((rate, burst)) = first else {
            let hint = "give a rate, for instance 1000pps or 10mbit";
            return Err(refuse(Part::Rate(0), "there is no rate", hint));
        };
        // With a burst of its own a rate is good: what does not fit is the burst.
        let blamed = |rate, burst: Option<(usize, usize, u64)>| {
            burst.map_or(Part::Rate(rate), |(place, ..)| Part::Burst(place))
        };
        let amount = |burst: Option<(usize, usize, u64)>| burst.map(|(.., amount)| amount);
        target.check().map_err(|error| (Part::Target, error.into()))?;
        let mut limit = Limit::new(target, rate, amount(burst))
            .map_err(|error| (blamed(0, burst), error.into()))?;
        if let Some((rate, burst)) = also {
            limit =
                limit.and(rate, amount(burst)).map_err(|error| (blamed(1, burst), error.into()))?;
        }
        let ban = |error: Invalid| (Part::Ban, error);
        let wanted = self.ban.map(|text| text.read()).transpose();
        let wanted = wanted.map_err(|error| ban(ModelError::from(error).into()))?;
        let limit =
            limit.enforced(self.enforce).banning(wanted).map_err(|error| ban(error.into()))?;
        Scope::read(self.scope, self.partition)
            .and_then(|scope| limit.scoped(scope))
            .map_err(|error| (Part::Scope, error.into()))
    }

    /// Each burst: its place, the place of the rate that it is for, and packets or bytes.
    fn bursts(&self, rates: &[Rate]) -> Result<Vec<(usize, usize, u64)>, Refused> {
        let mut bursts: Vec<(usize, usize, u64)> = Vec::with_capacity(2);
        for (place, text) in self.bursts.iter().enumerate() {
            let wrong = |error: UnitError| (Part::Burst(place), Invalid::from(error));
            let read = |rate: &Rate| parse_burst(text, rate.unit());
            let of = match rates {
                [] | [_] => 0,
                // No burst can be read both ways.
                several => several.iter().position(|rate| read(rate).is_ok()).unwrap_or(0),
            };
            let Some(rate) = rates.get(of) else { continue };
            let amount = read(rate).map_err(wrong)?;
            if bursts.iter().any(|(_, other, _)| *other == of) {
                let unit = rate.unit().name();
                return Err(refuse(
                    Part::Burst(place),
                    format!("there are two bursts of {unit} for one rate of {unit}"),
                    "give one burst for each rate",
                ));
            }
            bursts.push((place, of, amount));
        }
        Ok(bursts)
    }
}

impl Unit {
    /// What is counted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Explain as _;

    fn input<'a>(rates: &[&'a str], bursts: &[&'a str]) -> LimitInput<'a> {
        let (rates, bursts) = (rates.to_vec(), bursts.to_vec());
        LimitInput { rates, bursts, enforce: true, ban: None, scope: None, partition: None }
    }

    #[test]
    fn rates_come_in_any_order_and_bursts_find_theirs() {
        let wanted = input(&["1000pps", "10mbit"], &["2000", "64kbyte"]);
        let wanted = wanted.limit(Target::DEFAULT).unwrap();
        assert_eq!((wanted.rate.unit(), wanted.burst), (Unit::Packets, 2000));
        assert_eq!(
            wanted.also.map(|also| (also.rate.to_string(), also.burst)),
            Some(("10mbit".into(), 64_000))
        );
        for (rates, bursts) in [
            (["10mbit", "1000pps"], ["2000", "64kbyte"]),
            (["10mbit", "1kpps"], ["64kbyte", "2k"]),
            (["1000pps", "10mbit"], ["64kbyte", "2000"]),
        ] {
            assert_eq!(input(&rates, &bursts).limit(Target::DEFAULT).unwrap(), wanted);
        }
        let one = input(&["10mbit", "1000pps"], &["64kbyte"]).limit(Target::DEFAULT).unwrap();
        assert_eq!((one.burst, one.also.map(|also| also.burst)), (1200, Some(64_000)));
    }

    #[test]
    fn what_does_not_go_together_is_blamed() {
        let lasts = BanText { lasts: Some("10m"), ..BanText::default() };
        let ban = Some(lasts);
        let shared = "10.0.0.0/8 as-one".parse().unwrap();
        for (input, target, part, about) in [
            (input(&[], &[]), Target::DEFAULT, Part::Rate(0), "no rate"),
            (input(&["5"], &[]), Target::DEFAULT, Part::Rate(0), "no unit"),
            (input(&["5pps", "5mbps"], &[]), Target::DEFAULT, Part::Rate(1), "ambiguous"),
            (
                input(&["5pps", "7pps"], &[]),
                Target::DEFAULT,
                Part::Rate(1),
                "5pps and 7pps both count packets",
            ),
            (
                input(&["5pps", "1mbit", "1pps"], &[]),
                Target::DEFAULT,
                Part::Rate(2),
                "both count packets",
            ),
            (
                input(&["5pps"], &["5", "6"]),
                Target::DEFAULT,
                Part::Burst(1),
                "two bursts of packets",
            ),
            (input(&["5pps"], &["64kbyte"]), Target::DEFAULT, Part::Burst(0), "kbyte"),
            (
                input(&["5pps", "1mbit"], &["5", "6"]),
                Target::DEFAULT,
                Part::Burst(1),
                "two bursts of packets",
            ),
            (input(&["5pps", "1mbit"], &["5", "6foo"]), Target::DEFAULT, Part::Burst(1), "foo"),
            (
                input(&["1mbit", "5pps"], &["5", "9byte"]),
                Target::DEFAULT,
                Part::Burst(1),
                "full frame",
            ),
            (
                LimitInput {
                    ban: Some(BanText { after: Some("5s"), ..lasts }),
                    ..input(&["5pps"], &[])
                },
                shared,
                Part::Ban,
                "share",
            ),
            (
                LimitInput { scope: Some(Reach::Cluster), ..input(&["5pps"], &[]) },
                shared,
                Part::Scope,
                "10.0.0.0/8 as-one: only limits that each source has",
            ),
            (
                LimitInput { partition: Some(Partition::Conservative), ..input(&["5pps"], &[]) },
                Target::DEFAULT,
                Part::Scope,
                "no partition policy",
            ),
            (
                LimitInput { ban, enforce: false, ..input(&["5pps"], &[]) },
                Target::DEFAULT,
                Part::Ban,
                "not enforced",
            ),
            (
                LimitInput {
                    ban: Some(BanText { lasts: Some("ten"), ..lasts }),
                    ..input(&["5pps"], &[])
                },
                Target::DEFAULT,
                Part::Ban,
                "ten",
            ),
        ] {
            let (blamed, error) = input.limit(target).unwrap_err();
            assert_eq!(blamed, part, "{input:?}: {error}");
            assert!(error.to_string().contains(about), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
