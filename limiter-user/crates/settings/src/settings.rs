//! What is in effect, and where each value comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches, Id};
use serde_json::Value;

use super::args::ClusterArgs;
use super::file::{ConfigFile, name_of};
use crate::DaemonConfig;
use crate::web::WebConfig;
use crate::{LinkControl, LogFormat, Malformed, RunArgs};
use api::error::{Failure, exit};
use cluster::ClusterConfig;
use dataplane::{self, Options};
use model::Location;
use model::chain;
use model::instance::{Instance, Paths};
use model::lists::Action;
use model::scope::no_cluster;
use model::target::TargetError;
use model::{Classes, Groups, Limits, Management};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The file.
    File(Location),
    /// Nobody has said anything.
    Default,
}

/// What has been said by flag or environment, which the file cannot change.
pub type Fixed = BTreeMap<String, Origin>;

/// What flags and environment say, with the defaults for all else.
#[derive(Clone, Debug)]
pub struct Arguments {
    run: RunArgs,
    /// The options of `run` that were given, and nothing else.
    given: Option<ArgMatches>,
    socket: PathBuf,
    fixed: Fixed,
    file: Option<PathBuf>,
    instance: Option<Instance>,
}

impl Arguments {
    /// Takes the arguments of a command and what they were read from, outermost first. What they leave
    /// open is in the places of `instance`.
    pub fn new(
        run: RunArgs,
        socket: PathBuf,
        file: Option<PathBuf>,
        instance: Option<Instance>,
        matches: &[&ArgMatches],
    ) -> Self {
        let mut fixed = Fixed::new();
        for matches in matches {
            for id in matches.ids().map(Id::as_str) {
                let origin = match matches.value_source(id) {
                    Some(ValueSource::CommandLine) => Origin::Flag,
                    Some(ValueSource::EnvVariable) => Origin::Environment,
                    _ => continue,
                };
                // By id, which is the key's name: so origin, flag and key of the file are found by
                // one word.
                fixed.insert(id.to_owned(), origin);
            }
        }
        // clap has no layer between its defaults and what was given, where the file would belong.
        // So the defaults are taken out here, and come in again by way of the file.
        let given = matches.last().map(|options| {
            let mut given = ArgMatches::clone(options);
            for id in options.ids().filter(|id| !fixed.contains_key(id.as_str())) {
                // A default does not win over the file.
                drop(given.try_clear_id(id.as_str()));
            }
            given
        });
        Self { run, given, socket, fixed, file, instance }
    }

    /// How the log is written, as far as is known without the file.
    pub fn log_format(&self) -> LogFormat {
        self.run.log_format
    }

    /// Reads the file that was named, or else the usual one if it is there.
    ///
    /// # Errors
    /// As [`ConfigFile::find`].
    pub fn read_file(&self) -> Result<ConfigFile, Failure> {
        ConfigFile::find(self.file.as_deref(), &Paths::new(self.instance.as_ref()).config)
    }

    /// What is in effect if the file is `file`.
    ///
    /// # Errors
    /// If that cannot be; the message tells whether a flag, the environment or which place in the file
    /// is to blame.
    pub fn with(&self, file: ConfigFile) -> Result<Settings, Failure> {
        let Paths { socket, state_dir, pin_dir, .. } = Paths::new(self.instance.as_ref());
        let mut run = file.keys.clone();
        for (key, value, place) in [
            ("socket", &mut run.socket, socket),
            ("state_dir", &mut run.state_dir, state_dir),
            ("pin_dir", &mut run.pin_dir, pin_dir),
        ] {
            // The file's own default is that of the daemon without an instance.
            if !file.has(key) {
                *value = place;
            }
        }
        if let Some(given) = &self.given {
            let updated = run.update_from_arg_matches(given);
            updated.map_err(|error| Failure::new(exit::USAGE, error.to_string()))?;
        }
        // It is an option of every command, and not among those of `run`.
        if self.fixed.contains_key("socket") {
            run.socket.clone_from(&self.socket);
        }
        let (fixed, instance) = (self.fixed.clone(), self.instance.clone());
        let settings = Settings { run, fixed, instance, file };
        // As a whole, not each source for itself: a flag may be what makes a key of the file wrong.
        settings.check()?;
        Ok(settings)
    }
}

/// What is in effect.
#[derive(Clone, Debug)]
pub struct Settings {
    run: RunArgs,
    fixed: Fixed,
    instance: Option<Instance>,
    /// The file that is part of it.
    pub file: ConfigFile,
}

impl Settings {
    /// Where a key's value comes from.
    pub fn origin(&self, key: &str) -> Origin {
        match (self.fixed.get(key), self.file.place_of(key)) {
            (Some(origin), _) => origin.clone(),
            (None, Some(place)) => Origin::File(place),
            (None, None) => Origin::Default,
        }
    }

    /// Where a key's value comes from, in words.
    pub fn origin_text(&self, key: &str) -> String {
        match self.origin(key) {
            Origin::Flag => Flag(key).to_string(),
            Origin::Environment => Variable(key).to_string(),
            Origin::File(place) => format!("{}:{}", self.file.name(), place.line),
            Origin::Default => match &self.instance {
                Some(name) if ["socket", "state_dir", "pin_dir"].contains(&key) => {
                    format!("default of instance {name}")
                }
                _ => "default".into(),
            },
        }
    }

    /// Every key that a file can have, but for limits, and its value.
    pub fn values(&self) -> Vec<(String, Value)> {
        let mut values = BTreeMap::new();
        let Ok(Value::Object(keys)) = serde_json::to_value(&self.run) else { return Vec::new() };
        for (key, value) in keys {
            match value {
                Value::Object(table) => {
                    values.extend(table.into_iter().map(|(inner, it)| (name_of(&key, &inner), it)));
                }
                value => drop(values.insert(key, value)),
            }
        }
        values.into_iter().collect()
    }

    /// How the log is written.
    pub fn log_format(&self) -> LogFormat {
        self.run.log_format
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.run.socket
    }

    /// Puts a key's name and origin before a failure.
    pub fn blame(&self, key: &str, failure: Failure) -> Failure {
        match self.origin(key) {
            Origin::File(place) => {
                let key = match key.strip_prefix("cluster_") {
                    Some(inner) => format!("cluster.{inner}"),
                    None => key.to_owned(),
                };
                self.file.blame(Some(place), failure.context(key))
            }
            Origin::Environment => failure.context(Variable(key)),
            Origin::Flag | Origin::Default => failure.context(Flag(key)),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        // The data plane knows the bounds, and names options; which of flag, variable and key was
        // used is known here.
        match self.options().check() {
            Err(dataplane::Error::Option { option, problem, hint }) => {
                let key = option.trim_start_matches('-').replace('-', "_");
                let failure = Failure::new(exit::USAGE, problem).hint(hint);
                return Err(self.blame(&key, failure));
            }
            Err(error) => return Err(Failure::new(exit::USAGE, chain(&error))),
            Ok(()) => {}
        }
        check_names(&self.run.interfaces).map_err(|failure| self.blame("interfaces", failure))?;
        self.web().check().map_err(|(key, failure)| self.blame(key, failure))?;
        self.cluster().check(host_name).map_err(|(key, error)| self.blame(key, error.into()))?;
        self.check_scopes(self.cluster().is_on())?;
        let lengths = (self.run.ipv4_prefix, self.run.ipv6_prefix);
        let management = Management::new(&self.run.management.addresses, lengths);
        self.check_limits(lengths, &management)?;
        self.check_lists(lengths, &management)
    }

    /// Whether the file's limits hold where they can, in a cluster or not.
    ///
    /// # Errors
    /// The first limit that is for the cluster where there is none, by its place.
    pub fn check_scopes(&self, clustered: bool) -> Result<(), Failure> {
        // Amounts are few, limits may be very many: so these are only searched if one is to be
        // found.
        if clustered || !self.file.limits().in_cluster() {
            return Ok(());
        }
        let Some(limit) = self.file.limits().iter().find(|limit| limit.scope.is_cluster()) else {
            return Ok(());
        };
        let failure = Failure::from(no_cluster(&format!("the limit for {}", limit.target.short())));
        let place = self.file.place_of_limit(&limit.target);
        Err(self.file.blame(place, failure))
    }

    /// Whether the entries of the file's lists fit sources of so many bits, IPv4 and IPv6, and
    /// `management`.
    ///
    /// # Errors
    /// The first entry that does not, by its place.
    pub fn check_lists(&self, lengths: (u8, u8), management: &Management) -> Result<(), Failure> {
        for (net, listing) in self.file.lists().iter() {
            let bits = if net.addr().is_ipv4() { lengths.0 } else { lengths.1 };
            let checked = if net.prefix_len() > bits {
                Err(TargetError::FinerThanSource { target: *net, bits }.into())
            // Whoever is allowed is not shut out, so management addresses may be.
            } else if listing.action == Action::Deny {
                management.check(&(*net).into()).map_err(Failure::from)
            } else {
                Ok(())
            };
            if let Err(failure) = checked {
                let place = self.file.place_of_entry(net);
                return Err(self.file.blame(place, failure));
            }
        }
        Ok(())
    }

    /// Whether the classes of the file's limits go with those of `stored`, which were set at run time.
    ///
    /// # Errors
    /// The first limit whose class does not, by its place.
    pub fn check_classes(&self, stored: &Limits) -> Result<(), Failure> {
        // Those of the store first: they are in force, so the file is to blame for what does not go
        // with them.
        let mut classes = Classes::new(stored.classes())?;
        for limit in self.file.limits().iter().filter(|limit| !limit.target.class.is_any()) {
            if let Err(error) = classes.add(limit.target.class) {
                let failure = Failure::from(error).context("with what was set at run time");
                let place = self.file.place_of_limit(&limit.target);
                return Err(self.file.blame(place, failure));
            }
        }
        Ok(())
    }

    /// Whether the file's limits fit sources of so many bits, IPv4 and IPv6, and `management`.
    ///
    /// # Errors
    /// The first limit that does not, by its place.
    pub fn check_limits(&self, lengths: (u8, u8), management: &Management) -> Result<(), Failure> {
        for limit in self.file.limits().iter() {
            let checked = limit
                .check_prefix(lengths.0, lengths.1)
                .map_err(Failure::from)
                .and_then(|()| Ok(management.check(&limit.target)?));
            if let Err(failure) = checked {
                let place = self.file.place_of_limit(&limit.target);
                return Err(self.file.blame(place, failure));
            }
        }
        Ok(())
    }

    fn options(&self) -> Options {
        let run = &self.run;
        Options {
            pin_dir: run.pin_dir.clone(),
            epsilon: run.sketch_epsilon,
            delta: run.sketch_delta,
            window: run.sketch_window,
            max_sources: run.max_sources,
            max_limits: run.max_limits,
            max_listed: run.max_listed,
            ipv4_prefix: run.ipv4_prefix,
            ipv6_prefix: run.ipv6_prefix,
            drop_malformed: run.malformed == Malformed::Drop,
            limit_link_control: run.link_control == LinkControl::Limit,
            tunnels: run.tunnels.clone(),
            on_full: run.on_full,
            groups: Groups { limit: run.group_limit, ipv6_prefix: run.group_ipv6_prefix },
            kernel_log: run.kernel_log,
            // It is not configured: a daemon in a cluster derives it from the key of that.
            hash_secret: None,
            listen: run.cluster.listen,
            reset: run.reset_state,
        }
    }

    /// The dashboard.
    pub fn web(&self) -> WebConfig {
        let run = &self.run;
        WebConfig {
            listen: run.http_listen,
            token_file: run.http_token_file.clone(),
            admin_token_file: run.http_admin_token_file.clone(),
            tls_cert: run.http_tls_cert.clone(),
            tls_key: run.http_tls_key.clone(),
            hosts: run.http_host.clone(),
        }
    }

    /// The cluster that the host is to be in.
    pub fn cluster(&self) -> ClusterConfig {
        let ClusterArgs {
            name,
            listen,
            advertise,
            seeds,
            bootstrap_expect,
            key_file,
            weight,
            region,
        } = self.run.cluster.clone();
        ClusterConfig { name, listen, advertise, seeds, bootstrap_expect, key_file, weight, region }
    }

    /// A daemon that runs with it.
    pub fn daemon(&self) -> DaemonConfig {
        let run = self.run.clone();
        DaemonConfig {
            options: self.options(),
            web: self.web(),
            cluster: self.cluster(),
            interfaces: run.interfaces,
            mode: run.mode,
            replace: run.replace,
            socket: run.socket,
            socket_group: run.socket_group,
            admin_group: run.admin_group,
            management: run.management.addresses,
            state_dir: run.state_dir,
            on_exit: run.on_exit,
            instance: self.instance.clone(),
        }
    }
}

/// The name that the kernel has for this host.
pub fn host_name() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}

/// A key as a flag.
pub(super) struct Flag<'a>(pub &'a str);

impl fmt::Display for Flag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The one that is given once for each.
        let key = if self.0 == "interfaces" { "interface" } else { self.0 };
        write!(f, "--{}", key.replace('_', "-"))
    }
}

/// A key as an environment variable.
pub(super) struct Variable<'a>(pub &'a str);

impl fmt::Display for Variable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LIMITER_{}", self.0.to_uppercase())
    }
}

/// The longest name that the kernel gives an interface, bytes.
// IFNAMSIZ with its final zero.
const MAX_NAME_LEN: usize = 15;

fn check_names(names: &[String]) -> Result<(), Failure> {
    let refuse = |problem: String, hint: &str| Err(Failure::new(exit::USAGE, problem).hint(hint));
    for (place, name) in names.iter().enumerate() {
        let odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > MAX_NAME_LEN || name.contains(odd) {
            let hint = "give names as `ip link` shows them, such as eth0";
            return refuse(format!("{name:?} is not the name of an interface"), hint);
        }
        if names[..place].contains(name) {
            return refuse(format!("{name} is there twice"), "name each interface once");
        }
    }
    Ok(())
}
