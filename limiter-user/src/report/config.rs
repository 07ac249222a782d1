//! The configuration: what is in effect, and what reading it again changes.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DiffReport, LimitReport, Print, text};
use crate::policy::Target;

/// A value as a person writes it.
fn written(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Array(values) if values.is_empty() => "none".into(),
        Value::Array(values) => values.iter().map(written).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A key, its value, and where that comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingReport {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// `default`, the flag, the variable, or file and line.
    pub origin: String,
}

/// A limit of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileLimitReport {
    /// Whom it is for.
    pub target: Target,
    /// The rate.
    pub rate: String,
    /// The burst.
    pub burst: String,
    /// File and line.
    pub origin: String,
}

/// `config show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsReport {
    /// The file that was read, if there is one.
    pub file: Option<String>,
    /// Every key.
    pub settings: Vec<SettingReport>,
    /// The file's limits.
    pub limits: Vec<FileLimitReport>,
}

impl Print for SettingsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = text::table(&["KEY", "VALUE", "FROM"], 3);
        for setting in &self.settings {
            table.add_row([setting.key.clone(), written(&setting.value), setting.origin.clone()]);
        }
        for limit in &self.limits {
            let amount = format!("{} burst {}", limit.rate, limit.burst);
            table.add_row([
                format!("limit {}", limit.target.short()),
                amount,
                limit.origin.clone(),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())
    }
}

/// `config check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The file; nothing if there is none.
    pub file: Option<String>,
    /// How many limits it has.
    pub limits: u64,
}

impl Print for CheckReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.file {
            Some(file) => writeln!(out, "{file}: good, {} limits", self.limits),
            None => writeln!(out, "there is no configuration file; defaults are in effect"),
        }
    }
}

/// `config default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultReport {
    /// A commented file.
    pub toml: String,
}

impl Print for DefaultReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.toml.as_bytes())
    }
}

/// `config schema`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchemaReport(pub Value);

impl Print for SchemaReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.0)?;
        writeln!(out)
    }
}

/// A limit of the file that is not in force, because one that was set at run time is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shadowed {
    /// Whom both are for.
    pub target: Target,
    /// The file's.
    pub file: LimitReport,
    /// The one in force.
    pub runtime: LimitReport,
}

/// A key whose value in the configuration is another one than the daemon runs with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyDiff {
    /// The key.
    pub key: String,
    /// What the daemon runs with.
    pub running: Value,
    /// What it would run with after a restart.
    pub file: Value,
}

/// `reload` and `config diff`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The file; nothing if there is none.
    pub file: Option<String>,
    /// Whether the limits have been changed, or only would be.
    pub applied: bool,
    /// How the limits in force change.
    #[serde(flatten)]
    pub limits: DiffReport,
    /// Limits of the file that differ from those set at run time, which stay in force.
    pub shadowed: Vec<Shadowed>,
    /// Keys that take effect with the next start.
    pub restart: Vec<KeyDiff>,
}

impl ReloadReport {
    /// Whether file and daemon agree.
    pub fn same(&self) -> bool {
        self.limits == DiffReport::default() && self.shadowed.is_empty() && self.restart.is_empty()
    }
}

impl Print for ReloadReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.limits.print(out)?;
        for Shadowed { target, file, runtime } in &self.shadowed {
            writeln!(
                out,
                "= {}: {} was set at run time and stays in force, not {}",
                target.short(),
                runtime.summary(),
                file.summary()
            )?;
        }
        for KeyDiff { key, running, file } in &self.restart {
            let (running, file) = (written(running), written(file));
            writeln!(out, "! {key}: {running} → {file}, which needs a restart")?;
        }
        let file = self.file.as_deref().unwrap_or("no file");
        let done = if self.applied { "read again" } else { "compared with the daemon" };
        writeln!(out, "{file} {done}: limits {}", self.limits.summary())
    }
}

/// The configuration, as `status` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigReport {
    /// The file, if there is one.
    pub file: Option<String>,
    /// Its limits.
    pub limits: u64,
    /// Of those, not in force because one for the same target was set at run time.
    pub shadowed: u64,
    /// Why the file could not be read again.
    pub problem: Option<String>,
}

impl ConfigReport {
    /// The file and its limits in a few words.
    pub fn summary(&self) -> String {
        let Some(file) = &self.file else { return "no file".into() };
        let shadowed = match self.shadowed {
            0 => String::new(),
            n => format!(", {n} of them replaced by ones set at run time"),
        };
        format!("{file}, {} limits{shadowed}", self.limits)
    }
}
