//! What the command line's parser has to say, in the words of this program: what is wrong, then what to
//! write instead.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::Cli;
use super::output::Output;
use api::error::{Failure, exit};
use model::Invalid;
use model::units::DurationError;

/// Tells what the parser has to say of `arguments`: help on stdout; errors on stderr and, if asked for, as JSON.
pub(super) fn tell(arguments: &[OsString], error: &clap::Error, output: &mut Output<'_>) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody is left to tell if the terminal has gone.
            let _ = error.print();
            exit::OK
        }
        // clap calls this an error and prints the help to stderr: a script must not take it for a document.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            let missing = Failure::new(exit::USAGE, "a command is missing");
            output.document_of(&missing.hint("the help on stderr lists them"))
        }
        _ => output.fail(&explain(arguments, error)),
    }
}

/// The error as a failure.
fn explain(arguments: &[OsString], error: &clap::Error) -> Failure {
    let help = format!("see `{} --help`", command(arguments));
    if let Some(failure) = refused_value(error) {
        return Failure { hint: failure.hint.or(Some(help)), ..failure };
    }
    let hints: Vec<_> = suggestion(error).into_iter().chain([help]).collect();
    Failure::new(exit::USAGE, message(error)).hint(hints.join("; "))
}

/// What the reader of a value says, after the name of its option. clap would put its own words around that, and has no
/// place for a hint.
fn refused_value(error: &clap::Error) -> Option<Failure> {
    // Of our own errors clap prints only the text, and they have a hint besides.
    let source = std::error::Error::source(error)?;
    let failure = match source.downcast_ref::<DurationError>() {
        Some(error) => Failure::from(error.clone()),
        None => Failure::from(source.downcast_ref::<Invalid>()?.clone()),
    };
    let option = texts(error, ContextKind::InvalidArg).into_iter().next()?;
    Some(failure.context(option.split_whitespace().next().unwrap_or_default()))
}

/// The first paragraph, without the values that there are.
fn message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // What follows are usage and tips: they have a place in the hint.
    let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("[possible values")).collect();
    lines.join(" ").replacen("error: ", "", 1)
}

/// What was meant, or else which values there are.
fn suggestion(error: &clap::Error) -> Option<String> {
    let meant =
        [ContextKind::SuggestedValue, ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let meant = meant.into_iter().map(|kind| texts(error, kind)).find(|all| !all.is_empty());
    // clap has the least alike first, by a measure that takes `lmit` for `list`.
    let meant = meant.and_then(|all| {
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let wrong = texts(error, ContextKind::InvalidSubcommand).into_iter().next();
        let best = settings::alike(&wrong.unwrap_or_default(), &all);
        best.or(all.last().copied()).map(str::to_owned)
    });
    let values = || {
        let values = texts(error, ContextKind::ValidValue);
        (!values.is_empty()).then(|| format!("write one of {}", values.join(", ")))
    };
    // One guess rather than the list, which the help has.
    meant.map(|meant| format!("did you mean `{meant}`?")).or_else(values)
}

/// The command that `arguments` name, as far as they do.
fn command(arguments: &[OsString]) -> String {
    let (mut at, mut name) = (Cli::command(), "limiter".to_owned());
    for argument in arguments.iter().skip(1) {
        // Options may stand between the commands. They are passed over, as no command has such a
        // name.
        if let Some(inner) = at.find_subcommand(argument) {
            name = format!("{name} {}", inner.get_name());
            at = inner.clone();
        }
    }
    name
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn errors_say_what_to_write_instead() {
        for (arguments, message, hint) in [
            (
                &["top", "--sort", "pss"][..],
                "invalid value 'pss' for '--sort <SORT>'",
                "did you mean `pps`?; see `limiter top --help`",
            ),
            (
                &["limit", "set"],
                "the following required arguments were not provided: <RATE>",
                "see `limiter limit set --help`",
            ),
            (
                &["deny", "add", "192.0.2.1", "--tll", "5m"],
                "unexpected argument '--tll' found",
                "did you mean `--ttl`?; see `limiter deny add --help`",
            ),
            (
                &["stauts"],
                "unrecognized subcommand 'stauts'",
                "did you mean `status`?; see `limiter --help`",
            ),
            (
                &["lmit", "list"],
                "unrecognized subcommand 'lmit'",
                "did you mean `limit`?; see `limiter --help`",
            ),
            (
                &["deny", "add", "192.0.2.1", "--ttl", "12"],
                "--ttl: \"12\" has no unit",
                "write 12s, 12m or 12h",
            ),
            (
                &["limit", "set", "5pps", "--confirm", "-5m"],
                "--confirm: \"-5m\" is negative",
                "write 5m",
            ),
            (
                &["report", "--since", "yesterday"],
                "--since: \"yesterday\" is not a duration",
                "write a number and a unit, such as 90s, 10m, 12h or 7d",
            ),
            (
                &["run", "--management", "0.0.0.0/0"],
                "--management: 0.0.0.0/0 covers every source, so that nothing would be limited",
                "list the addresses that you administer the host from",
            ),
        ] {
            let all: Vec<OsString> = ["limiter"].iter().chain(arguments).map(Into::into).collect();
            let failure = explain(&all, &Cli::try_parse_from(&all).unwrap_err());
            assert_eq!((failure.message.as_str(), failure.hint.as_deref()), (message, Some(hint)));
            assert_eq!(failure.code, exit::USAGE);
        }
    }
}
