//! A limit as it is stored and replicated: its [`Amount`] as JSON, beside its target.

use crate::{Amount, Limit, Target};

/// A limit without its target, as JSON.
pub fn record(amount: &Amount) -> String {
    // Plain values always make JSON.
    serde_json::to_string(amount).unwrap_or_default()
}

/// Something that is kept as text, by its key; to be removed if there is no text.
pub type Row = (String, Option<String>);

/// Reads what [`record`] has written of the limit of `target`.
///
/// # Errors
/// What is wrong with it.
pub fn read(target: Target, record: &str) -> Result<Limit, String> {
    let amount: Amount = serde_json::from_str(record).map_err(|error| error.to_string())?;
    // Of a replica another host has written it, and of a store maybe another version.
    amount.checked(target).map_err(|error| error.to_string())
}
