//! The configuration: what is in effect, and what reading it again changes.

use std::io::{self, Write};

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::limit::{amount, describe};
use super::{
    DiffReport, LimitReport, ListDiff, ListEntry, PendingReport, Print, Rule, TierReport, text,
};
use model::limit::is_nothing;
use model::lists::Action;
use model::target::short_prefix;
use model::{Algorithm, Ban, Limit, OnError, Partition, Reach, Target};

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
    /// A key as the settings have it, `cluster_listen`: one name for flag, variable and file.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// `default`, the flag, the variable, or file and line.
    pub origin: String,
}

/// A limit of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileLimitReport {
    /// Its target.
    pub target: Target,
    /// The rate in its largest exact unit, `1000pps`.
    pub rate: String,
    /// The burst as it is written, `2000 packets`.
    pub burst: String,
    /// How it is kept.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
    /// What holds at the same time, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<TierReport>,
    /// Whether what is over it is dropped, rather than only counted.
    pub enforce: bool,
    /// What becomes of a source that goes on to be far over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<Ban>,
    /// Where it holds.
    #[serde(default)]
    pub scope: Reach,
    /// Of a limit for the cluster, what becomes of the shares of hosts that cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// As of a limit in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Of a limit that sources share, how much of the burst is kept for known sources, percent.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserve: u8,
    /// File and line.
    pub origin: String,
}

/// An entry of the allow or the deny list in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntryReport {
    /// Which list.
    pub list: Action,
    /// Its target.
    pub target: IpNet,
    /// The operator's words, if there are any.
    pub reason: Option<String>,
    /// File and line.
    pub origin: String,
}

/// `config show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsReport {
    /// The file that was read, if there is one.
    pub file: Option<String>,
    /// Every key but limits and lists, by name.
    pub settings: Vec<SettingReport>,
    /// The file's limits.
    pub limits: Vec<FileLimitReport>,
    /// The file's entries of the allow and deny lists.
    pub lists: Vec<FileEntryReport>,
}

impl FileLimitReport {
    /// Tells `limit`, which is found at `origin`.
    pub fn new(limit: &Limit, origin: String) -> Self {
        let LimitReport {
            target, rate, burst, algorithm, also, enforce, ban, scope, partition, on_error, reserve, ..
        } =
            // A file is shown without a daemon, too. Nobody knows the sketch's window there, so it
            // has no gate.
            LimitReport::new(limit, 0);
        let rate = rate.to_string();
        Self {
            target,
            rate,
            burst,
            algorithm,
            also,
            enforce,
            ban,
            scope,
            partition,
            on_error,
            reserve,
            origin,
        }
    }

    fn summary(&self) -> String {
        let amount = amount(&self.rate, &self.burst, self.also.as_ref(), self.algorithm);
        let wide = (self.partition, self.on_error);
        describe(&amount, self.enforce, self.ban, wide, self.reserve)
    }
}

impl Print for SettingsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = text::table(&["KEY", "VALUE", "FROM"], 3);
        for setting in &self.settings {
            table.add_row([setting.key.clone(), written(&setting.value), setting.origin.clone()]);
        }
        for limit in &self.limits {
            table.add_row([
                format!("limit {}", limit.target.short()),
                limit.summary(),
                limit.origin.clone(),
            ]);
        }
        for entry in &self.lists {
            table.add_row([
                format!("{} {}", entry.list, short_prefix(&entry.target)),
                entry.reason.clone().unwrap_or_default(),
                entry.origin.clone(),
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
    /// How many entries of the lists it has.
    pub listed: u64,
    /// What the operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Print for CheckReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.file {
            Some(file) => {
                writeln!(out, "{file}: good, {} limits, {} listed", self.limits, self.listed)
            }
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
// Transparent: an editor wants the schema itself, not an answer that has one.
pub struct SchemaReport(pub Value);

impl Print for SchemaReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.0)?;
        writeln!(out)
    }
}

/// A limit or an entry of the file that is not in force, because one that was set at run time is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Serialize", deserialize = "R: DeserializeOwned"))]
pub struct Shadowed<R: Rule = LimitReport> {
    /// The target of both.
    pub target: R::Target,
    /// What the file says, which is not in force.
    pub file: R,
    /// The one in force.
    pub runtime: R,
}

impl<R: Rule> Print for Shadowed<R> {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, runtime, file) = (self.file.name(), self.runtime.summary(), self.file.summary());
        // Said at each reload: an edited file without effect is what operators miss longest.
        writeln!(out, "= {name}: {runtime} was set at run time and stays in force, not {file}")
    }
}

/// A key whose value in the configuration is another one than the daemon runs with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyDiff {
    /// As [`SettingReport::key`].
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
    /// Whether anything has been changed, or only would be.
    pub applied: bool,
    /// How the limits in force change.
    #[serde(flatten)]
    pub limits: DiffReport,
    /// Limits of the file that differ from those set at run time, which stay in force.
    pub shadowed: Vec<Shadowed>,
    /// How the lists in force change.
    #[serde(default)]
    pub lists: ListDiff,
    /// Entries of the file that differ from those set at run time, which stay in force.
    #[serde(default)]
    pub lists_shadowed: Vec<Shadowed<ListEntry>>,
    /// Keys that change at once.
    #[serde(default)]
    pub live: Vec<KeyDiff>,
    /// Keys that take effect with the next start.
    pub restart: Vec<KeyDiff>,
    /// The confirmation that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<PendingReport>,
    /// What the operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl ReloadReport {
    /// Whether file and daemon agree.
    pub fn same(&self) -> bool {
        self.count() == 0
            && self.shadowed.is_empty()
            && self.lists_shadowed.is_empty()
            // What needs a restart differs, too: a script that asks whether anything does must be
            // told.
            && self.restart.is_empty()
    }

    /// How many limits, entries and keys change.
    pub fn count(&self) -> u64 {
        (self.limits.len() + self.lists.len() + self.live.len()) as u64
    }

    /// How many limits and entries come and go, in a few words.
    pub fn summary(&self) -> String {
        let limits = format!("limits {}", self.limits.summary());
        if self.lists.is_empty() {
            return limits;
        }
        format!("{limits}; lists {}", self.lists.summary())
    }
}

impl Print for ReloadReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.limits.print(out)?;
        self.lists.print(out)?;
        self.shadowed.iter().try_for_each(|shadowed| shadowed.print(out))?;
        self.lists_shadowed.iter().try_for_each(|shadowed| shadowed.print(out))?;
        for KeyDiff { key, running, file } in &self.live {
            writeln!(out, "~ {key}: {} → {}", written(running), written(file))?;
        }
        for KeyDiff { key, running, file } in &self.restart {
            let (running, file) = (written(running), written(file));
            // A mark of its own: the daemon has not changed this key, whatever was applied around
            // it.
            writeln!(out, "! {key}: {running} → {file}, which needs a restart")?;
        }
        let file = self.file.as_deref().unwrap_or("no file");
        let done = if self.applied { "read again" } else { "compared with the daemon" };
        writeln!(out, "{file} {done}: {}", self.summary())?;
        let Some(confirm) = &self.confirm else { return Ok(()) };
        confirm.print_left(out)
    }
}

/// The configuration, as `status` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigReport {
    /// The file, if there is one.
    pub file: Option<String>,
    /// How many limits it has.
    pub limits: u64,
    /// Of those, not in force because one for the same target was set at run time.
    pub shadowed: u64,
    /// Its entries of the allow and deny lists.
    #[serde(default)]
    pub listed: u64,
    /// Of those, not in force because one for the same target was set at run time.
    #[serde(default)]
    pub listed_shadowed: u64,
    /// The file that is not in force, because reading it again was not confirmed.
    #[serde(default)]
    // That file is still on disk. Without this nobody would know why it has no effect.
    pub refused: Option<String>,
    /// Why the file could not be read again.
    pub problem: Option<String>,
}

impl ConfigReport {
    /// The file and its limits in a few words.
    pub fn summary(&self) -> String {
        let Some(file) = &self.file else { return "no file".into() };
        let replaced = |count| match count {
            0 => String::new(),
            n => format!(", {n} of them replaced by ones set at run time"),
        };
        let listed = match self.listed {
            0 => String::new(),
            n => format!(", {n} listed{}", replaced(self.listed_shadowed)),
        };
        format!("{file}, {} limits{}{listed}", self.limits, replaced(self.shadowed))
    }
}
