//! `limiter config` and `limiter reload`

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use hyper::Method;

use super::args::{CleanupArgs, Global};
use super::cleanup::Place;
use super::output::Output;
use super::safety::{SafetyArgs, warn};
use api::client::Client;
use api::error::{Failure, exit};
use api::requests::ConfigText;
use api::{
    CheckReport, DefaultReport, FileEntryReport, FileLimitReport, ReloadReport, SchemaReport,
    SettingReport, SettingsReport,
};
use model::instance::Paths;
use model::lists::{is_wide, reach_of_wide};
use settings::{Arguments, ConfigFile, RunArgs, Settings};

/// What a command with the options of `run` was given. `matches` are all that were parsed.
pub(super) fn given(run: RunArgs, global: &Global, matches: &ArgMatches) -> Arguments {
    // The parser keeps what was given at each level of commands.
    // All are asked, as an option may stand at any of them.
    let mut levels = vec![matches];
    while let Some((_, next)) = levels.last().and_then(|last| last.subcommand()) {
        levels.push(next);
    }
    let Global { socket, config, instance, .. } = global;
    Arguments::new(run, socket.clone(), config.clone(), instance.clone(), &levels)
}

/// What `limiter run` is given without options and environment.
fn bare(global: &Global) -> Arguments {
    let Global { socket, config, instance, .. } = global;
    // Not the environment: the daemon's unit has another one than this shell.
    Arguments::new(RunArgs::default(), socket.clone(), config.clone(), instance.clone(), &[])
}

/// Whether flag or environment name the socket.
fn names_socket(matches: &ArgMatches) -> bool {
    // The value alone cannot tell: somebody may have named the very default.
    matches.value_source("socket") != Some(ValueSource::DefaultValue)
}

fn usual(global: &Global) -> Paths {
    Paths::new(global.instance.as_ref())
}

/// The file that was named, or else that of the instance if it is there.
fn find(global: &Global, named: Option<&Path>) -> Result<ConfigFile, Failure> {
    ConfigFile::find(named.or(global.config.as_deref()), &usual(global).config)
}

/// The socket that the file names, if neither flag nor environment does.
pub(super) fn socket(global: &Global, matches: &ArgMatches) -> PathBuf {
    if names_socket(matches) {
        return global.socket.clone();
    }
    let usual = usual(global).socket;
    match find(global, None) {
        Ok(file) => file.socket().unwrap_or(&usual).into(),
        // Who may use the socket need not be allowed to read the file.
        Err(failure) if failure.code == exit::PRIVILEGE => usual,
        Err(failure) => {
            // A broken file must not lock the operator out: the daemon still runs with the one that it has read.
            tracing::warn!("{failure}; taking {} for the socket", usual.display());
            usual
        }
    }
}

/// The only place to clean, if flag or environment say so.
pub(super) fn only_place(
    global: &Global,
    matches: &ArgMatches,
    arguments: &CleanupArgs,
) -> Option<Place> {
    // A named place is meant: there a daemon that runs is a reason to refuse, and no place to
    // leave out.
    let is_named = global.instance.is_some()
        || global.config.is_some()
        || arguments.pin_dir.is_some()
        || names_socket(matches);
    is_named.then(|| place(global, matches, arguments.pin_dir.clone()))
}

/// Where the daemon without an instance and all instances may have left something.
pub(super) fn places(global: &Global, matches: &ArgMatches) -> Vec<Place> {
    // The plain daemon counts as one more place.
    let instances = api::instances::known().into_iter().map(Some);
    let places = [None].into_iter().chain(instances).map(|instance| {
        let global = Global { instance, ..global.clone() };
        place(&global, matches, None)
    });
    places.collect()
}

fn place(global: &Global, matches: &ArgMatches, pins: Option<PathBuf>) -> Place {
    Place {
        instance: global.instance.clone(),
        socket: socket(global, matches),
        pin_dir: pin_dir(pins, global),
    }
}

/// The directory of pins that the file names, if neither flag nor environment does.
pub(super) fn pin_dir(given: Option<PathBuf>, global: &Global) -> PathBuf {
    let usual = usual(global).pin_dir;
    given.unwrap_or_else(|| match find(global, None) {
        Ok(file) => file.pin_dir().map_or(usual, Into::into),
        Err(failure) => {
            // `doctor` and `cleanup` are for when something is wrong, the file among it.
            tracing::warn!("{failure}; taking {} for the pins", usual.display());
            usual
        }
    })
}

/// The file with the cluster's key that the configuration names.
pub(super) fn key_file(global: &Global) -> Result<PathBuf, Failure> {
    // No guess here: a key where the daemon does not look is a host without a key.
    let settings = bare(global).with(find(global, None)?)?;
    Ok(settings.cluster().key_file)
}

/// `limiter config check`
pub(super) fn check(
    output: &mut Output<'_>,
    global: &Global,
    file: Option<PathBuf>,
) -> Result<u8, Failure> {
    let file = find(global, file.as_deref())?;
    let settings = bare(global).with(file)?;
    // A start refuses files that it cannot read. Better to hear of it before the restart than after.
    daemon::check_files(&settings)?;
    let limits = settings.file.limits().len() as u64;
    let listed = settings.file.lists().len() as u64;
    // Warned of and not refused: a reload takes such a file, too.
    let wide = settings.file.lists().iter().filter(|(net, _)| is_wide(net));
    let wide = wide.map(|(net, listing)| format!("this {}", reach_of_wide(listing.action, net)));
    let warnings: Vec<String> = wide.collect();
    warn(&warnings);
    output.print(&CheckReport { file: name(&settings), limits, listed, warnings })
}

fn name(settings: &Settings) -> Option<String> {
    settings.file.path.as_ref().map(|path| path.display().to_string())
}

/// `limiter config show`
pub(super) fn show(output: &mut Output<'_>, given: &Arguments) -> Result<u8, Failure> {
    let settings = given.with(given.read_file()?)?;
    let values = settings.values().into_iter().map(|(key, value)| {
        let origin = settings.origin_text(&key);
        SettingReport { key, value, origin }
    });
    let limits = settings.file.limits().iter().map(|limit| {
        let line = settings.file.place_of_limit(&limit.target).map_or(0, |place| place.line);
        FileLimitReport::new(&limit, format!("{}:{line}", settings.file.name()))
    });
    let lists = settings.file.lists().iter().map(|(net, listing)| {
        let line = settings.file.place_of_entry(net).map_or(0, |place| place.line);
        FileEntryReport {
            list: listing.action,
            target: *net,
            reason: listing.reason.as_deref().map(str::to_owned),
            origin: format!("{}:{line}", settings.file.name()),
        }
    });
    output.print(&SettingsReport {
        file: name(&settings),
        settings: values.collect(),
        limits: limits.collect(),
        lists: lists.collect(),
    })
}

/// `limiter config diff`
pub(super) async fn diff(
    client: &Client,
    output: &mut Output<'_>,
    file: Option<&Path>,
) -> Result<u8, Failure> {
    let text = match file {
        None => None,
        // Its text, as the daemon has given up root and may be unable to read what the operator can.
        Some(path) => Some(ConfigText { path: path.into(), text: ConfigFile::text(path)? }),
    };
    let report: ReloadReport = client.send(Method::POST, "/v1/config/diff", &text).await?;
    let same = report.same();
    output.print(&report)?;
    Ok(if same { exit::OK } else { exit::NEGATIVE })
}

/// `limiter config default`
pub(super) fn default(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&DefaultReport { toml: settings::default_file() })
}

/// `limiter config schema`
pub(super) fn schema(output: &mut Output<'_>) -> Result<u8, Failure> {
    output.print(&SchemaReport(settings::schema()))
}

/// `limiter reload`
pub(super) async fn reload(
    client: &Client,
    output: &mut Output<'_>,
    safety: SafetyArgs,
) -> Result<u8, Failure> {
    let path = format!("/v1/reload{}", safety.query(&[])?);
    let report: ReloadReport = client.send(Method::POST, &path, &()).await?;
    warn(&report.warnings);
    output.print(&report)
}
