//! A limit as it is stored and replicated.

use serde::{Deserialize, Serialize};

use crate::{Amount, Ban, Limit, ModelError, Rate, Scope, Target, Tier};

/// What a database has of a limit, beside its target.
#[derive(Serialize, Deserialize)]
struct Record {
    rate: Rate,
    burst: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    also: Option<Also>,
    #[serde(default = "enforced", skip_serializing_if = "Clone::clone")]
    enforce: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ban: Option<Banned>,
    #[serde(default, skip_serializing_if = "Scope::is_local")]
    scope: Scope,
}

#[derive(Serialize, Deserialize)]
struct Also {
    rate: Rate,
    burst: u64,
}

#[derive(Serialize, Deserialize)]
struct Banned {
    after: u32,
    factor: u32,
    lasts: u32,
}

impl From<&Amount> for Record {
    fn from(amount: &Amount) -> Self {
        let &Amount { rate, burst, also, enforce, ban, scope } = amount;
        let also = also.map(|Tier { rate, burst }| Also { rate, burst });
        let ban = ban.map(|Ban { after, factor, lasts }| Banned { after, factor, lasts });
        Self { rate, burst, also, enforce, ban, scope }
    }
}

impl Record {
    /// The limit of `target` that it tells.
    ///
    /// # Errors
    /// If that cannot be a limit.
    fn limit(self, target: Target) -> Result<Limit, ModelError> {
        let mut limit = Limit::new(target, self.rate, Some(self.burst))?.enforced(self.enforce);
        if let Some(Also { rate, burst }) = self.also {
            limit = limit.and(rate, Some(burst))?;
        }
        let ban = self.ban.map(|Banned { after, factor, lasts }| Ban::new(after, factor, lasts));
        limit.banning(ban.transpose()?)?.scoped(self.scope)
    }
}

const fn enforced() -> bool {
    true
}

/// A limit without its target, as JSON.
pub fn record(amount: &Amount) -> String {
    // Plain values always make JSON.
    serde_json::to_string(&Record::from(amount)).unwrap_or_default()
}

/// Something that is kept as text, by its key; to be removed if there is no text.
pub type Row = (String, Option<String>);

/// Reads what [`record`] has written of the limit of `target`.
///
/// # Errors
/// What is wrong with it.
pub fn read(target: Target, record: &str) -> Result<Limit, String> {
    let record: Record = serde_json::from_str(record).map_err(|error| error.to_string())?;
    record.limit(target).map_err(|error| error.to_string())
}
