//! `limiter config` and `limiter reload`

use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};
use hyper::Method;

use super::args::{Cli, Global, RunArgs};
use super::output::Output;
use crate::client::Client;
use crate::config::{self, ConfigFile, Given, Keys, Settings};
use crate::error::{Failure, exit};
use crate::http::ConfigText;
use crate::report::{
    CheckReport, DefaultReport, FileLimitReport, ReloadReport, SchemaReport, SettingReport,
    SettingsReport,
};

/// What a command with the options of `run` was given. `matches` are all that were parsed.
pub(super) fn given(run: RunArgs, global: &Global, matches: &ArgMatches) -> Given {
    let mut levels = vec![matches];
    while let Some((_, next)) = levels.last().and_then(|last| last.subcommand()) {
        levels.push(next);
    }
    Given::new(run, global.socket.clone(), global.config.clone(), &levels)
}

/// What `limiter run` is given without options and environment.
fn bare(global: &Global) -> Result<Given, Failure> {
    let internal = |error: clap::Error| Failure::new(exit::USAGE, error.to_string());
    let without_environment = |arg: Arg| arg.env(Resettable::Reset);
    let command = Cli::command()
        .mut_args(without_environment)
        .mut_subcommand("run", |run| run.mut_args(without_environment));
    let matches = command.try_get_matches_from(["limiter", "run"]).map_err(internal)?;
    let run = matches.subcommand_matches("run").map(RunArgs::from_arg_matches);
    let run = run.transpose().map_err(internal)?;
    run.map(|run| given(run, global, &matches))
        .ok_or_else(|| Failure::new(exit::USAGE, "there is no command `run`"))
}

/// The socket that the file names, if neither flag nor environment does.
pub(super) fn socket(global: &Global, matches: &ArgMatches) -> PathBuf {
    if matches.value_source("socket") != Some(clap::parser::ValueSource::DefaultValue) {
        return global.socket.clone();
    }
    match ConfigFile::find(global.config.as_deref()) {
        Ok(file) => file.socket().unwrap_or(&global.socket).into(),
        // Who may use the socket need not be allowed to read the file.
        Err(failure) if failure.code == exit::PRIVILEGE => global.socket.clone(),
        Err(failure) => {
            tracing::warn!("{failure}; taking {} for the socket", global.socket.display());
            global.socket.clone()
        }
    }
}

/// The directory of pins that the file names, if neither flag nor environment does.
pub(super) fn pin_dir(given: Option<PathBuf>, global: &Global) -> PathBuf {
    let usual = || PathBuf::from("/sys/fs/bpf/limiter");
    given.unwrap_or_else(|| match ConfigFile::find(global.config.as_deref()) {
        Ok(file) => file.pin_dir().map_or_else(usual, Into::into),
        Err(failure) => {
            tracing::warn!("{failure}; taking {} for the pins", usual().display());
            usual()
        }
    })
}

/// `limiter config check`
pub(super) fn check(
    output: &mut Output<'_>,
    global: &Global,
    file: Option<PathBuf>,
) -> Result<u8, Failure> {
    let named = file.or_else(|| global.config.clone());
    let file = ConfigFile::find(named.as_deref())?;
    let settings = bare(global)?.with(file)?;
    let limits = settings.file.limits().len() as u64;
    output.print(&CheckReport { file: name(&settings), limits })?;
    Ok(exit::OK)
}

fn name(settings: &Settings) -> Option<String> {
    settings.file.path.as_ref().map(|path| path.display().to_string())
}

/// `limiter config show`
pub(super) fn show(output: &mut Output<'_>, given: &Given) -> Result<u8, Failure> {
    let settings = given.with(ConfigFile::find(given.file())?)?;
    let values = settings.values().into_iter().map(|(key, value)| {
        let origin = settings.origin_text(&key);
        SettingReport { key, value, origin }
    });
    let limits = settings.file.limits().iter().map(|limit| {
        let line = settings.file.place_of_limit(&limit.target).map_or(0, |place| place.line);
        FileLimitReport {
            target: limit.target,
            rate: limit.rate.to_string(),
            burst: limit.burst_text(),
            origin: format!("{}:{line}", settings.file.name()),
        }
    });
    let (values, limits) = (values.collect(), limits.collect());
    output.print(&SettingsReport { file: name(&settings), settings: values, limits })?;
    Ok(exit::OK)
}

/// `limiter config diff`
pub(super) async fn diff(
    client: &Client,
    output: &mut Output<'_>,
    file: Option<&Path>,
) -> Result<u8, Failure> {
    let text = match file {
        None => None,
        Some(path) => Some(ConfigText { path: path.into(), text: ConfigFile::text(path)? }),
    };
    let report: ReloadReport = client.send(Method::POST, "/v1/config/diff", &text).await?;
    let same = report.same();
    output.print(&report)?;
    Ok(if same { exit::OK } else { exit::NEGATIVE })
}

/// `limiter config default`
pub(super) fn default(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&DefaultReport { toml: config::DEFAULT.into() })?;
    Ok(exit::OK)
}

/// `limiter config schema`
pub(super) fn schema(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&SchemaReport(schemars::schema_for!(Keys).to_value()))?;
    Ok(exit::OK)
}

/// `limiter reload`
pub(super) async fn reload(
    client: &Client,
    output: &mut Output<'_>,
    dry_run: bool,
) -> Result<u8, Failure> {
    let path = format!("/v1/reload?dry_run={dry_run}");
    let report: ReloadReport = client.send(Method::POST, &path, &()).await?;
    output.print(&report)?;
    Ok(exit::OK)
}
