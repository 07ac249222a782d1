//! `limiter rule`: limits of single descriptors.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::limit::read_text;
use super::output::Output;
use super::safety::{SafetyArgs, warn};
use api::client::{Client, escape};
use api::error::{Failure, exit};
use api::{OverridesChanged, OverridesReport};
use model::meter::{Choice, Limit};
use model::overrides::{Descriptor, Line};
use model::units::parse_duration;
use model::{Invalid, Reach};

/// What `limiter-serve` does with them, and the lines of `import`.
const ABOUT: &str = "\
limiter-serve with --daemon keeps to them. Rules in files say what all others have.
A line of an import: {\"for\": [\"api\", \"user\", \"241531\"], \"limit\": {\"rate\": \"5/second\", \"burst\": 10}}";

#[derive(Debug, Subcommand)]
pub(super) enum RuleCommand {
    /// Give a descriptor a limit of its own, in place of what the rules in files say
    #[command(after_help = ABOUT)]
    Set {
        /// Units and a time: second, minute, hour, day, week, month, year, or such as 90s
        #[arg(value_name = "RATE")]
        rate: String,
        #[command(flatten)]
        descriptor: DescriptorArgs,
        /// Units that a token bucket holds [default: those of the rate]
        #[arg(long, value_name = "N")]
        burst: Option<u64>,
        /// How units are counted
        #[arg(long, value_enum, default_value = "token-bucket")]
        algorithm: Choice,
        /// Parts of a window of sub-windows
        #[arg(long, value_name = "N")]
        granularity: Option<u64>,
        #[command(flatten)]
        reach: ReachArgs,
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// Set many at once: all of them, or none if one line is wrong
    #[command(after_help = ABOUT)]
    Import {
        /// A file with a line of JSON for each, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        reach: ReachArgs,
        #[command(flatten)]
        safety: SafetyArgs,
    },
    /// List them
    List {
        /// Those of this domain
        #[arg(value_name = "DOMAIN")]
        domain: Option<String>,
    },
    /// Take the limit of its own from a descriptor
    Unset {
        #[command(flatten)]
        descriptor: DescriptorArgs,
        #[command(flatten)]
        safety: SafetyArgs,
    },
}

/// Whose limit it is.
#[derive(Debug, Args)]
pub(super) struct DescriptorArgs {
    /// The domain, as rules and requests name it
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// The entries of the descriptor, in their order
    #[arg(required = true, value_name = "KEY=VALUE")]
    entries: Vec<String>,
}

impl DescriptorArgs {
    fn descriptor(&self) -> Result<Descriptor, Invalid> {
        Descriptor::parse(&self.domain, &self.entries)
    }
}

/// Where, and for how long.
#[derive(Debug, Args)]
pub(super) struct ReachArgs {
    /// For how long, such as 10m or 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    ttl: Option<Duration>,
    /// On this host alone, or on all hosts of the cluster [default: local]
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Option<Reach>,
}

impl ReachArgs {
    /// The path of a request for it.
    fn path(&self, safety: SafetyArgs) -> Result<String, Failure> {
        model::lists::end_of(0, self.ttl)?;
        let ttl = self.ttl.map(|ttl| ttl.as_secs().to_string());
        let mut more = Vec::new();
        more.extend(ttl.as_deref().map(|ttl| ("ttl_seconds", ttl)));
        more.extend(self.scope.map(|scope| ("scope", scope.name())));
        Ok(format!("/v1/overrides{}", safety.query(&more)?))
    }
}

pub(super) async fn run(
    client: &Client,
    output: &mut Output<'_>,
    command: RuleCommand,
) -> Result<u8, Failure> {
    let (path, text) = match command {
        RuleCommand::List { domain } => {
            let query = domain.map(|domain| format!("?domain={}", escape(&domain)));
            let path = format!("/v1/overrides{}", query.unwrap_or_default());
            return output.show::<OverridesReport>(client, &path).await;
        }
        RuleCommand::Set { rate, descriptor, burst, algorithm, granularity, reach, safety } => {
            let limit = Limit::of_rate(&rate).map_err(Invalid::from)?;
            let limit = Limit { burst, algorithm, granularity, ..limit };
            let limit = limit.checked().map_err(Invalid::from)?;
            let line = Line { descriptor: descriptor.descriptor()?, limit };
            (reach.path(safety)?, line_of(&line)?)
        }
        RuleCommand::Import { file, reach, safety } => {
            let hint = "give a file with a line of JSON for each, or - for stdin";
            (reach.path(safety)?, read_text(&file, hint)?)
        }
        RuleCommand::Unset { descriptor, safety } => {
            let path = format!("/v1/overrides/remove{}", safety.query(&[])?);
            (path, line_of(&descriptor.descriptor()?)?)
        }
    };
    let report: OverridesChanged = client.send_text(&path, text).await?;
    warn(&report.applied.warnings);
    output.print(&report)
}

fn line_of(what: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(what).map_err(|error| Failure::new(exit::USAGE, error.to_string()))
}
