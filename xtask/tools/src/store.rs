//! The central stores that tests run against.

use std::env;

use crate::{REDIS, REDIS_6, REDIS_8, Tool, VALKEY};

/// The variable that names the store which tests run against; unset, it is [`Store::Redis`].
pub const STORE: &str = "LIMITER_TEST_STORE";

/// A version of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Store {
    /// Redis as the system has it: 7.0 in Debian 12.
    #[default]
    Redis,
    /// Redis 6.2, the oldest that is promised to work.
    Redis6,
    /// Redis 8.2.
    Redis8,
    /// Valkey 8.0.
    Valkey,
}

impl Store {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Redis6, Self::Redis8, Self::Valkey];

    /// Its name, as [`STORE`] has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redis6 => "redis-6.2",
            Self::Redis8 => "redis-8.2",
            Self::Valkey => "valkey-8.0",
        }
    }

    /// Its server.
    #[must_use]
    pub const fn tool(self) -> &'static Tool {
        match self {
            Self::Redis => &REDIS,
            Self::Redis6 => &REDIS_6,
            Self::Redis8 => &REDIS_8,
            Self::Valkey => &VALKEY,
        }
    }

    /// Whether its server was built with TLS.
    #[must_use]
    pub const fn has_tls(self) -> bool {
        matches!(self, Self::Redis | Self::Valkey)
    }

    /// The one that [`STORE`] names.
    ///
    /// # Errors
    /// If it names none.
    pub fn chosen() -> Result<Self, String> {
        let Ok(name) = env::var(STORE) else { return Ok(Self::default()) };
        let found = Self::ALL.into_iter().find(|store| store.name() == name);
        found.ok_or_else(|| {
            format!("{STORE} is `{name}`: use one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
