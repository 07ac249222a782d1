//! The command line: one file per command, each of which returns an exit code.

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
mod output;
mod peers;
mod report;
mod run;
mod safety;
mod show;
mod simulate;
mod stats;
mod status;
mod suggest;
mod top;
mod usage;
mod version;

use std::ffi::OsString;
use std::io::Write;

use clap::{ArgMatches, CommandFactory, FromArgMatches};

pub(crate) use args::Cli;
use args::{Command, ConfigCommand};
use limit_args::LimitCommand;
use output::Output;

use api::client::Client;
use api::error::{Failure, exit};
use api::requests::TrialRequest;
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
            let json = arguments.iter().any(|argument| argument == "--json");
            return usage::tell(&arguments, &error, &mut Output::new(json, out));
        }
    };
    // The daemon's configuration says how its log is written.
    if !matches!(cli.command, Command::Run(_)) {
        output::start_log(&cli.global, LogFormat::Text);
    }
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
    match cli.command {
        Command::Run(arguments) => {
            return run::run(output, &global, config::given(*arguments, &global, matches));
        }
        Command::Version => return version::run(output),
        Command::Doctor(arguments) => {
            let pin_dir = config::pin_dir(arguments.pin_dir, &global);
            let instance = global.instance.as_ref();
            return doctor::run(output, &pin_dir, arguments.interface.as_deref(), instance);
        }
        Command::Cleanup(arguments) => {
            return match config::only_place(&global, matches, &arguments) {
                Some(place) => cleanup::one(output, place, &arguments),
                None => cleanup::all(output, config::places(&global, matches), &arguments),
            };
        }
        Command::Cluster(ref command) => {
            if let Some(done) = cluster::alone(output, &global, command) {
                return done;
            }
        }
        Command::Documents { directory } => return documents::run(&directory),
        Command::Completions { shell } => return documents::completions(output, shell),
        Command::Simulate(command) => return simulate::run(output, &command),
        Command::Config(ConfigCommand::Check { file }) => {
            return config::check(output, &global, file);
        }
        Command::Config(ConfigCommand::Show(arguments)) => {
            return config::show(output, &config::given(*arguments, &global, matches));
        }
        Command::Config(ConfigCommand::Default) => return config::default(output),
        Command::Config(ConfigCommand::Schema) => return config::schema(output),
        _ => {}
    }
    let client = Client::new(&config::socket(&global, matches)).of(global.instance.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot start: {error}")))?;
    runtime.block_on(async {
        match cli.command {
            Command::Status => status::run(&client, output).await,
            Command::Stats { nonzero } => stats::run(&client, output, nonzero).await,
            Command::Limit(LimitCommand::Set(arguments)) => {
                limit::set(&client, output, *arguments).await
            }
            Command::Limit(LimitCommand::Import { file, safety }) => {
                limit::import(&client, output, &file, safety).await
            }
            Command::Limit(LimitCommand::List) => limit::list(&client, output).await,
            Command::Limit(LimitCommand::Try { rate, burst, target, kind, stop }) => {
                let target = kind.target(&target)?;
                match rate {
                    Some(rate) if !stop => {
                        let request = TrialRequest { target: target.to_string(), rate, burst };
                        limit::try_out(&client, output, request).await
                    }
                    _ => limit::stop_trial(&client, output, target).await,
                }
            }
            Command::Limit(LimitCommand::Trials { n }) => limit::trials(&client, output, n).await,
            Command::Limit(LimitCommand::Unset { target, kind, safety }) => {
                limit::unset(&client, output, kind.target(&target)?, safety).await
            }
            Command::Config(ConfigCommand::Diff { file }) => {
                config::diff(&client, output, file.as_deref()).await
            }
            Command::Reload { safety } => config::reload(&client, output, safety).await,
            Command::Confirm { abort } => safety::confirm(&client, output, abort).await,
            Command::Allow(command) => list::run(&client, output, Action::Allow, command).await,
            Command::Deny(command) => list::run(&client, output, Action::Deny, command).await,
            Command::Top(arguments) => top::run(&client, output, &arguments).await,
            Command::Suggest(arguments) => suggest::run(&client, output, &arguments).await,
            Command::Monitor(arguments) => monitor::run(&client, output, &arguments).await,
            Command::Report(arguments) => report::run(&client, output, &arguments).await,
            Command::Capture(arguments) => {
                capture::run(&client, output, arguments, global.json).await
            }
            Command::Show { address, cluster } => {
                show::run(&client, output, &address, cluster).await
            }
            Command::Peers => peers::run(&client, output).await,
            Command::Cluster(command) => cluster::run(&client, output, command).await,
            Command::Attach(arguments) => attach::attach(&client, output, arguments).await,
            Command::Detach { interface } => attach::detach(&client, output, &interface).await,
            Command::Run(_)
            | Command::Config(_)
            | Command::Version
            | Command::Doctor(_)
            | Command::Simulate(_)
            | Command::Cleanup(_)
            | Command::Completions { .. }
            | Command::Documents { .. } => unreachable!("handled above"),
        }
    })
}

#[cfg(test)]
mod tests;
