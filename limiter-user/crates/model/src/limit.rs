//! A limit: for whom, how much, and how much at once.

use std::ops::{Deref, DerefMut};

use limiter_common::batch;
use limiter_common::gcra::{MAX_TOLERANCE, TICKS_PER_NS};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, AlgorithmError};
use super::ban::{Ban, BanError};
use super::invalid::input_error;
use super::scope::Scope;
use super::target::{Target, TargetError};
use super::units::{Rate, Unit, format_burst};

/// The smallest burst of a limit in bytes: one full Ethernet frame without its check sequence.
pub const FULL_FRAME: u64 = batch::FULL_FRAME as u64;

/// A limit: an amount for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its target: sources, and the class of their packets.
    pub target: Target,
    /// How much a source may send, and all else that was said.
    pub amount: Amount,
}

/// What was said of a limit beside its target, as it is stored and replicated. What was read has to be
/// checked with [`Amount::checked`]: not every amount is good, nor for every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Amount {
    /// How much, in the long run; packets, if there is a limit in both units.
    pub rate: Rate,
    /// How much at once, in the rate's unit; of a window all of it.
    pub burst: u64,
    /// How it is kept, what holds at the same time included.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
    /// What holds at the same time, in bytes; then `rate` is in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<Tier>,
    /// Whether what is over it is dropped, rather than only counted.
    #[serde(default = "enforced", skip_serializing_if = "Clone::clone")]
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<Ban>,
    /// Where it holds.
    #[serde(default, skip_serializing_if = "Scope::is_local")]
    pub scope: Scope,
    /// Of a limit that sources share, how much of the burst is kept for known sources, percent, 0..=[`MAX_RESERVE`].
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserve: u8,
}

/// The largest reserve, percent.
// All the rest is for newcomers, who cannot become known without it.
pub const MAX_RESERVE: u8 = 90;

/// Packets a second of a limit that a store leases, at least and at most.
// A lease lasts for a second at the most, and has a token at least. The store's times are whole ns.
const MIN_LEASED: f64 = 10.0;
const MAX_LEASED: f64 = 1e7;

/// Whether there is no reserve.
pub const fn is_nothing(reserve: &u8) -> bool {
    *reserve == 0
}

pub(super) const fn enforced() -> bool {
    true
}

// Most code that has a limit asks for its amount, and few for its target.
impl Deref for Limit {
    type Target = Amount;

    fn deref(&self) -> &Amount {
        &self.amount
    }
}

impl DerefMut for Limit {
    fn deref_mut(&mut self) -> &mut Amount {
        &mut self.amount
    }
}

impl Amount {
    /// A rate and its burst of which nothing more is said.
    pub const fn new(Tier { rate, burst, algorithm }: Tier) -> Self {
        Self {
            rate,
            burst,
            algorithm,
            also: None,
            enforce: true,
            ban: None,
            scope: Scope::Local,
            reserve: 0,
        }
    }

    /// The limit of `target` that has this amount.
    pub const fn of(self, target: Target) -> Limit {
        Limit { target, amount: self }
    }

    /// As [`Amount::new`], for an amount that comes from elsewhere.
    ///
    /// # Errors
    /// If that cannot be a limit.
    pub fn checked(self, target: Target) -> Result<Limit, ModelError> {
        // Through the same checks as what an operator writes: a store or another host may say
        // anything.
        let limit = Limit::by(target, self.algorithm, self.rate, Some(self.burst))?;
        let mut limit = limit.enforced(self.enforce);
        if let Some(Tier { rate, burst, .. }) = self.also {
            limit = limit.and(rate, Some(burst))?;
        }
        let limit = limit.banning(self.ban.map(Ban::checked).transpose()?)?;
        limit.scoped(self.scope)?.reserving(self.reserve)
    }
}

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tier {
    /// How much, in the long run.
    pub rate: Rate,
    /// How much at once, in the rate's unit; of a window all of it.
    pub burst: u64,
    /// How it is kept.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
}

/// Why a limit was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A target that cannot be.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A burst that no full-sized packet fits in.
    #[error("a burst of {} is smaller than one {what}", format_burst(*burst, *unit))]
    BurstTooSmall {
        /// The burst.
        burst: u64,
        /// Its unit.
        unit: Unit,
        /// What does not fit.
        what: &'static str,
    },
    /// A burst of a window.
    #[error("a {} has no burst beside its {rate}", algorithm.name())]
    BurstOfWindow {
        /// What counts in windows.
        algorithm: Algorithm,
        /// The rate.
        rate: Rate,
    },
    /// A window whose limit is the cluster's.
    #[error("{}: a {} cannot be shared by hosts, as a share that moves in mid-window is spent twice", target.short(), algorithm.name())]
    WindowInCluster {
        /// Its target.
        target: Target,
        /// What counts in windows.
        algorithm: Algorithm,
    },
    /// A strict limit that the store cannot lease.
    #[error("{}: {why}", target.short())]
    NotLeased {
        /// Its target.
        target: Target,
        /// Why not.
        why: &'static str,
        /// What to write instead.
        hint: &'static str,
    },
    /// A window that sources share.
    #[error("{}: a {} is of one source; CPUs draw tokens for what sources share", target.short(), algorithm.name())]
    WindowOfMany {
        /// Its target.
        target: Target,
        /// What counts in windows.
        algorithm: Algorithm,
    },
    /// An algorithm that cannot be.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// A burst that takes too long to earn.
    #[error("a burst of {} at {rate} lasts longer than 13 days", format_burst(*burst, rate.unit()))]
    BurstTooLarge {
        /// The burst.
        burst: u64,
        /// The rate.
        rate: Rate,
        /// The largest burst at that rate.
        most: u64,
    },
    /// Two rates of one unit.
    #[error("{one} and {other} both count {}", one.unit().name())]
    SameUnit {
        /// The first one.
        one: Rate,
        /// The second one.
        other: Rate,
    },
    /// A reserve that leaves too little to newcomers.
    #[error("a reserve of {reserve} % leaves too little to sources that are not known yet")]
    ReserveTooLarge {
        /// The reserve, percent.
        reserve: u8,
    },
    /// A reserve of a limit that each source has by itself.
    #[error("{}: only a limit that sources share can have a reserve", target.short())]
    ReserveOfOne {
        /// Its target.
        target: Target,
    },
    /// A ban that cannot be.
    #[error(transparent)]
    Ban(#[from] BanError),
}

impl ModelError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::BurstTooSmall { unit: Unit::Packets, .. } => "give at least --burst 1".into(),
            Self::BurstTooSmall { unit: Unit::Bytes, .. } => {
                format!("give at least --burst {FULL_FRAME}byte, or no full frame would ever pass")
            }
            Self::BurstTooLarge { most, rate, .. } => {
                format!("give at most --burst \"{}\"", format_burst(*most, rate.unit()))
            }
            Self::SameUnit { .. } => {
                "give one rate of packets and one of bytes, for instance 1000pps and 10mbit".into()
            }
            Self::BurstOfWindow { .. } => {
                "leave the burst out, or take token-bucket, which has one".into()
            }
            Self::WindowInCluster { .. } => {
                "take token-bucket, or give the limit the scope local".into()
            }
            Self::NotLeased { hint, .. } => (*hint).into(),
            Self::WindowOfMany { .. } => "take token-bucket, or leave aggregate out".into(),
            Self::Algorithm(error) => error.hint(),
            Self::ReserveTooLarge { .. } => format!("give at most {MAX_RESERVE}"),
            Self::ReserveOfOne { .. } => "leave the reserve out, or add aggregate".into(),
            Self::Target(error) => error.hint(),
            Self::Ban(error) => error.hint(),
        }
    }
}

input_error!(ModelError);

impl Limit {
    /// A limit in one unit, with 120 % of what `rate` earns in a second as burst if none is given, and
    /// at least one packet or one full frame.
    ///
    /// # Errors
    /// [`ModelError::BurstTooSmall`], [`ModelError::BurstTooLarge`], [`ModelError::Target`].
    pub fn new(target: Target, rate: Rate, burst: Option<u64>) -> Result<Self, ModelError> {
        Self::by(target, Algorithm::TokenBucket, rate, burst)
    }

    /// A limit that an `algorithm` keeps, as [`Limit::new`]; of a window the burst is all that it admits.
    ///
    /// # Errors
    /// As [`Limit::new`], [`ModelError::BurstOfWindow`], and [`ModelError::WindowOfMany`] if sources share it.
    pub fn by(
        target: Target,
        algorithm: Algorithm,
        rate: Rate,
        burst: Option<u64>,
    ) -> Result<Self, ModelError> {
        target.check()?;
        if target.aggregate && !algorithm.is_bucket() {
            return Err(ModelError::WindowOfMany { target, algorithm });
        }
        Ok(Amount::new(Tier::by(algorithm, rate, burst)?).of(target))
    }

    /// The limit with another one, in the other unit, that holds at the same time.
    ///
    /// # Errors
    /// [`ModelError::SameUnit`], or as [`Limit::new`].
    pub fn and(self, rate: Rate, burst: Option<u64>) -> Result<Self, ModelError> {
        let (own, other) = (self.tier(), Tier::by(self.algorithm, rate, burst)?);
        if own.rate.unit() == rate.unit() {
            return Err(ModelError::SameUnit { one: own.rate, other: rate });
        }
        // One order, so that the same limit is written and compiled in one way.
        let in_packets = own.rate.unit() == Unit::Packets;
        let (first, second) = if in_packets { (own, other) } else { (other, own) };
        let Tier { rate, burst, .. } = first;
        Ok(Amount { rate, burst, also: Some(second), ..self.amount }.of(self.target))
    }

    /// The limit with a ban for those who go on to be far over it.
    ///
    /// # Errors
    /// [`ModelError::Ban`] if it is not enforced, or shared by many sources.
    pub fn banning(self, ban: Option<Ban>) -> Result<Self, ModelError> {
        // The bucket does not know who filled it: a ban would hit whoever came last.
        if ban.is_some() && (self.target.aggregate || self.target.class.is_of_destinations()) {
            return Err(BanError::Shared.into());
        }
        // Whoever only counts wants to see first. A ban would drop, which is the one thing this
        // limit must not do.
        if ban.is_some() && !self.enforce {
            return Err(BanError::NotEnforced.into());
        }
        Ok(Amount { ban, ..self.amount }.of(self.target))
    }

    /// The limit in a scope.
    ///
    /// # Errors
    /// [`ModelError::WindowInCluster`] if it is for the cluster and counts in windows, [`ModelError::NotLeased`] if it is
    /// strict and cannot be leased.
    pub fn scoped(self, scope: Scope) -> Result<Self, ModelError> {
        if scope.on_error().is_some()
            && let Some((why, hint)) = self.not_leased()
        {
            return Err(ModelError::NotLeased { target: self.target, why, hint });
        }
        if scope.is_cluster() && !self.amount.algorithm.is_bucket() {
            let (target, algorithm) = (self.target, self.amount.algorithm);
            return Err(ModelError::WindowInCluster { target, algorithm });
        }
        Ok(Amount { scope, ..self.amount }.of(self.target))
    }

    /// Why a central store cannot lease it, and what to write instead. What is not here goes with the scope strict.
    fn not_leased(&self) -> Option<(&'static str, &'static str)> {
        let rate = self.amount.rate;
        Some(match () {
            () if self.target.class.is_of_destinations() => (
                "the store leases what sources use, not what destinations get",
                "leave --by destination out, or take the scope cluster",
            ),
            () if self.target.aggregate => (
                "what sources share cannot be strict: CPUs draw its tokens ahead",
                "leave aggregate out, or take the scope cluster",
            ),
            () if !self.amount.algorithm.is_bucket() => (
                "a window cannot be strict: what is leased of it would be spent in the next one",
                "take token-bucket, or the scope local",
            ),
            () if rate.unit() == Unit::Bytes || self.amount.also.is_some() => (
                "a limit of bytes cannot be strict: the store leases packets",
                "give a rate of packets alone, or take the scope cluster",
            ),
            () if !(MIN_LEASED..=MAX_LEASED).contains(&rate.per_second()) => (
                "a strict limit is of 10 to 10 million packets a second",
                "give such a rate, or take the scope cluster",
            ),
            () => return None,
        })
    }

    /// The limit with so many percent of its burst for known sources.
    ///
    /// # Errors
    /// [`ModelError::ReserveTooLarge`], or [`ModelError::ReserveOfOne`] if each source has it by itself.
    pub const fn reserving(self, reserve: u8) -> Result<Self, ModelError> {
        if reserve > MAX_RESERVE {
            return Err(ModelError::ReserveTooLarge { reserve });
        }
        if reserve > 0 && !self.target.aggregate {
            return Err(ModelError::ReserveOfOne { target: self.target });
        }
        Ok(Amount { reserve, ..self.amount }.of(self.target))
    }

    /// The rate and the burst that every limit has.
    pub const fn tier(&self) -> Tier {
        let Amount { rate, burst, algorithm, .. } = self.amount;
        Tier { rate, burst, algorithm }
    }

    /// What holds at the same time: one rate, or two of different units.
    pub fn tiers(&self) -> impl Iterator<Item = Tier> + Clone {
        [self.tier()].into_iter().chain(self.amount.also)
    }

    /// Whether the target is a source or wider, where sources have so many bits.
    ///
    /// # Errors
    /// [`TargetError::FinerThanSource`] if it is not, [`TargetError::SingleAggregate`] if it is one source that
    /// is to be limited as one.
    pub fn check_prefix(&self, ipv4_prefix: u8, ipv6_prefix: u8) -> Result<(), TargetError> {
        // A destination is a whole address.
        let Some(target) = self.target.sources() else { return Ok(()) };
        let bits = if target.addr().is_ipv4() { ipv4_prefix } else { ipv6_prefix };
        // A bare IPv6 address is the usual way to name the source it belongs to, but a limit for it
        // would hold for the whole source: that has to be said.
        if target.prefix_len() > bits {
            return Err(TargetError::FinerThanSource { target, bits });
        }
        if self.target.aggregate && target.prefix_len() == bits {
            return Err(TargetError::SingleAggregate { single: target });
        }
        Ok(())
    }

    /// The limit with or without enforcement. Those with a ban are enforced.
    #[must_use]
    pub const fn enforced(self, enforce: bool) -> Self {
        Amount { enforce, ..self.amount }.of(self.target)
    }

    /// What `rate` counts.
    pub const fn unit(&self) -> Unit {
        self.amount.rate.unit()
    }
}

impl Tier {
    /// A rate with its burst; 120 % of what it earns in a second if none is given.
    ///
    /// # Errors
    /// [`ModelError::BurstTooSmall`] and [`ModelError::BurstTooLarge`].
    pub fn new(rate: Rate, burst: Option<u64>) -> Result<Self, ModelError> {
        let (least, what) = match rate.unit() {
            Unit::Packets => (1, "packet"),
            Unit::Bytes => (FULL_FRAME, "full frame (1514 bytes)"),
        };
        let most = Self::most_burst(&rate);
        let default = || {
            let earned = rate.earned_in(1_200_000_000);
            // Where even the least is too much, the check below says so.
            u64::try_from(earned).unwrap_or(u64::MAX).clamp(least, most.max(least))
        };
        let burst = burst.unwrap_or_else(default);
        if burst < least {
            return Err(ModelError::BurstTooSmall { burst, unit: rate.unit(), what });
        }
        if burst > most {
            return Err(ModelError::BurstTooLarge { burst, rate, most });
        }
        Ok(Self { rate, burst, algorithm: Algorithm::TokenBucket })
    }

    /// As [`Tier::new`]; with all that it admits as the burst where an `algorithm` counts in windows.
    ///
    /// # Errors
    /// As [`Tier::new`], and [`ModelError::BurstOfWindow`] for another burst than that.
    fn by(algorithm: Algorithm, rate: Rate, burst: Option<u64>) -> Result<Self, ModelError> {
        if algorithm.is_bucket() {
            return Self::new(rate, burst);
        }
        if burst.is_some_and(|burst| burst != rate.amount()) {
            return Err(ModelError::BurstOfWindow { algorithm, rate });
        }
        Ok(Self { algorithm, ..Self::new(rate, Some(rate.amount()))? })
    }

    /// The largest burst whose tolerance the token bucket can hold.
    fn most_burst(rate: &Rate) -> u64 {
        let most_ns = u128::from(MAX_TOLERANCE / TICKS_PER_NS);
        let most = most_ns * u128::from(rate.amount()) / u128::from(rate.period_ns());
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// The burst as it is written.
    pub fn burst_text(&self) -> String {
        format_burst(self.burst, self.rate.unit())
    }
}

#[cfg(test)]
mod tests;
