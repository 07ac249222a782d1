//! The command line: one file per command, or none where a report is all of it. Each returns an exit code.

mod algorithms;
mod args;
mod attach;
mod capture;
mod cleanup;
mod cleanup_report;
mod cluster;
mod config;
mod doctor;
mod documents;
mod limit;
mod limit_args;
mod list;
mod monitor;
mod nemesis;
mod output;
mod peers;
mod progress;
mod report;
mod rule;
mod run;
mod safety;
mod show;
mod simulate;
mod sketch;
mod stats;
mod status;
mod suggest;
mod top;
mod usage;

use std::ffi::OsString;
use std::io::Write;

use clap::{ArgMatches, CommandFactory, FromArgMatches};

use self::cluster::{ClusterCommand, KeyCommand};
pub(crate) use args::Cli;
use args::{Command, ConfigCommand};
use limit_args::{LimitCommand, ShadowCommand};
use output::Output;

use api::client::Client;
use api::error::{Failure, exit};
use api::requests::ShadowRequest;
use api::{KeysReport, LimitList, ShadowsReport, VersionReport};
use model::instance::address;
use model::lists::Action;
use settings::LogFormat;

/// Runs the command that `arguments` (the program's name first) ask for; data goes to `out`, logs
/// and errors to stderr. Returns the exit code.
pub(crate) fn main(arguments: Vec<OsString>, out: &mut dyn Write) -> u8 {
    let parsed = Cli::command().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // The parser has failed, so it does not say whether this was asked for.
            let json = arguments.iter().any(|argument| argument == "--json");
            return usage::tell(&arguments, &error, &mut Output::new(json, out));
        }
    };
    // The daemon's configuration says how its log is written.
    if !matches!(cli.command, Command::Run(_)) {
        output::start_log(&cli.global, LogFormat::Text);
    }
    // Hints name commands. With an instance they must name it, or the operator is sent to another daemon.
    let instance = cli.global.instance.clone();
    let mut output = Output::new(cli.global.json, out);
    match execute(cli, &matches, &mut output) {
        Ok(code) => code,
        Err(failure) => {
            let hint = failure.hint.as_deref().map(|hint| address(hint, instance.as_ref()));
            output.fail(&Failure { hint, ..failure })
        }
    }
}

fn execute(cli: Cli, matches: &ArgMatches, output: &mut Output<'_>) -> Result<u8, Failure> {
    let global = cli.global;
    // Made for commands that need it alone: it reads the configuration, and warns of one that it cannot read.
    let client = || Client::new(&config::socket(&global, matches)).of(global.instance.clone());
    match cli.command {
        Command::Run(arguments) => {
            run::run(output, &global, config::given(*arguments, &global, matches))
        }
        Command::Status => block_on(status::run(&client(), output)),
        Command::Stats { nonzero } => block_on(stats::run(&client(), output, nonzero)),
        Command::Limit(LimitCommand::Set(arguments)) => {
            block_on(limit::set(&client(), output, *arguments))
        }
        Command::Limit(LimitCommand::Import { file, safety }) => {
            block_on(limit::import(&client(), output, &file, safety))
        }
        Command::Limit(LimitCommand::List) => {
            block_on(output.show::<LimitList>(&client(), "/v1/limits"))
        }
        Command::Limit(LimitCommand::Shadow(command)) => match command {
            ShadowCommand::Set { rate, burst, algorithm, target } => {
                let target = target.target()?.to_string();
                let request = ShadowRequest { target, rate, burst, algorithm };
                block_on(limit::set_shadow(&client(), output, request))
            }
            ShadowCommand::List { n } => {
                let path = format!("/v1/shadows?n={n}");
                block_on(output.show::<ShadowsReport>(&client(), &path))
            }
            ShadowCommand::Unset { target } => {
                block_on(limit::unset_shadow(&client(), output, target.target()?))
            }
        },
        Command::Limit(LimitCommand::Unset { target, kind, safety }) => {
            block_on(limit::unset(&client(), output, kind.target(&target)?, safety))
        }
        Command::Config(ConfigCommand::Check { file }) => config::check(output, &global, file),
        Command::Config(ConfigCommand::Show(arguments)) => {
            config::show(output, &config::given(*arguments, &global, matches))
        }
        Command::Config(ConfigCommand::Default) => config::default(output),
        Command::Config(ConfigCommand::Schema) => config::schema(output),
        Command::Config(ConfigCommand::Diff { file }) => {
            block_on(config::diff(&client(), output, file.as_deref()))
        }
        Command::Reload { safety } => block_on(config::reload(&client(), output, safety)),
        Command::Confirm { abort } => block_on(safety::confirm(&client(), output, abort)),
        Command::Rule(command) => block_on(rule::run(&client(), output, command)),
        Command::Allow(command) => block_on(list::run(&client(), output, Action::Allow, command)),
        Command::Deny(command) => block_on(list::run(&client(), output, Action::Deny, command)),
        Command::Top(arguments) => block_on(top::run(&client(), output, &arguments)),
        Command::Suggest(arguments) => block_on(suggest::run(&client(), output, &arguments)),
        Command::Sketch(command) => block_on(sketch::run(client, output, command)),
        Command::Monitor(arguments) => block_on(monitor::run(&client(), output, &arguments)),
        Command::Report(arguments) => block_on(report::run(&client(), output, &arguments)),
        Command::Capture(arguments) => block_on(capture::run(&client(), output, arguments)),
        Command::Show { key, serve, .. } if !key.is_empty() => {
            block_on(show::key(&serve.client(), output, &key))
        }
        Command::Show { address, cluster, .. } => {
            block_on(show::run(&client(), output, &address.unwrap_or_default(), cluster))
        }
        Command::Peers => block_on(peers::run(&client(), output)),
        Command::Attach(arguments) => block_on(attach::attach(&client(), output, arguments)),
        Command::Detach { interface } => block_on(attach::detach(&client(), output, &interface)),
        Command::Doctor(arguments) if arguments.store => {
            block_on(doctor::run_store(output, &arguments.serve.client()))
        }
        Command::Doctor(arguments) => {
            let pin_dir = config::pin_dir(arguments.pin_dir, &global);
            let instance = global.instance.as_ref();
            // It runs where no daemon does, so the configuration is read here.
            doctor::run(output, &pin_dir, arguments.interface.as_deref(), instance)
        }
        Command::Cleanup(arguments) => match config::only_place(&global, matches, &arguments) {
            Some(place) => cleanup::one(output, place, &arguments),
            None => cleanup::all(output, config::places(&global, matches), &arguments),
        },
        Command::Cluster(ClusterCommand::Init) => block_on(cluster::init(&client(), output)),
        Command::Cluster(ClusterCommand::Forget { name, now, yes }) => {
            block_on(cluster::forget(&client(), output, &name, now, yes))
        }
        Command::Cluster(ClusterCommand::Leave { wait }) => {
            block_on(cluster::leave(&client(), output, wait))
        }
        Command::Cluster(ClusterCommand::Key(KeyCommand::Generate { file, force })) => {
            cluster::generate_key(output, &global, file, force)
        }
        Command::Cluster(ClusterCommand::Key(KeyCommand::Rotate { wait })) => {
            block_on(cluster::rotate_key(&client(), output, wait))
        }
        Command::Cluster(ClusterCommand::Key(KeyCommand::Status)) => {
            block_on(output.show::<KeysReport>(&client(), cluster::KEYS))
        }
        Command::Simulate(command) => simulate::run(output, &command),
        Command::Version => output.print(&VersionReport::of_this_binary(dataplane::has_program())),
        Command::Completions { shell } => documents::completions(output, shell),
        Command::Documents { directory } => documents::run(&directory),
    }
}

/// Runs a command that asks the daemon. The daemon itself has a runtime of its own, which cannot be within another.
fn block_on(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    // One thread: a command waits for one answer, and threads would take longer to start than that.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot start: {error}")))?
        .block_on(command)
}

#[cfg(test)]
mod tests;
