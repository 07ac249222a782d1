//! The command line: one file per command, each of which returns an exit code.

mod args;
mod attach;
mod limit;
mod output;
mod run;
mod show;
mod stats;
mod status;
mod top;
mod version;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::ErrorKind;

pub use args::Cli;
use args::{Command, LimitCommand};
use output::Output;

use crate::client::Client;
use crate::error::{Failure, exit};

/// Runs the command that `arguments` (the program's name first) ask for; data goes to `out`, logs
/// and errors to stderr. Returns the exit code.
pub fn main(arguments: Vec<OsString>, out: &mut dyn Write) -> u8 {
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&arguments, &error, out),
    };
    output::start_log(cli.global.verbose, cli.global.quiet);
    let mut output = Output::new(cli.global.json, out);
    match execute(cli, &mut output) {
        Ok(code) => code,
        Err(failure) => output.fail(&failure),
    }
}

/// Tells what clap has to say: help on stdout, errors on stderr and, if asked for, as JSON.
fn usage(arguments: &[OsString], error: &clap::Error, out: &mut dyn Write) -> u8 {
    // Nobody is left to tell if the terminal has gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => exit::OK,
        _ => {
            let json = arguments.iter().any(|argument| argument == "--json");
            let text = error.render().to_string();
            // The first paragraph; usage and tips come after it.
            let lines: Vec<_> = text.lines().take_while(|line| !line.is_empty()).collect();
            let message = lines.join(" ").replacen("error: ", "", 1);
            let failure = Failure::new(exit::USAGE, message).hint("see `limiter --help`");
            Output::new(json, out).document_of(&failure)
        }
    }
}

fn execute(cli: Cli, output: &mut Output<'_>) -> Result<u8, Failure> {
    let client = Client::new(&cli.global.socket);
    match cli.command {
        Command::Run(arguments) => return run::run(*arguments, cli.global.socket),
        Command::Version => return version::run(output),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot start: {error}")))?;
    runtime.block_on(async {
        match cli.command {
            Command::Status => status::run(&client, output).await,
            Command::Stats => stats::run(&client, output).await,
            Command::Limit(LimitCommand::Set { rate, burst, target }) => {
                limit::set(&client, output, rate, burst, target).await
            }
            Command::Limit(LimitCommand::Import { file }) => {
                limit::import(&client, output, &file).await
            }
            Command::Limit(LimitCommand::List) => limit::list(&client, output).await,
            Command::Limit(LimitCommand::Unset { target }) => {
                limit::unset(&client, output, &target).await
            }
            Command::Top(arguments) => top::run(&client, output, &arguments).await,
            Command::Show { address } => show::run(&client, output, &address).await,
            Command::Attach(arguments) => attach::attach(&client, output, arguments).await,
            Command::Detach { interface } => attach::detach(&client, output, &interface).await,
            Command::Run(_) | Command::Version => unreachable!("handled above"),
        }
    })
}

#[cfg(test)]
mod tests;
