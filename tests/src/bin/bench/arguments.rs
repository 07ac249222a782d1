//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use limiter_common::abi::LISTED_PREFIXES;

use crate::{
    cell::{Cell, Family, Pattern},
    contender::Contender,
};

/// Compare the limiter with what it competes with, side by side on this machine
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Arguments {
    /// Write every round and the medians to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the medians as an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// Rounds; each measures everything once [default: 5, or 3 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Short measurements and few rounds: noisy, for a first look
    #[arg(long)]
    pub(crate) quick: bool,
    /// So many others are on the deny list of limiter-denying; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) denied: u32,
    /// Spread them over all of IPv4 at random, so that there is no neighbourhood without one
    #[arg(long)]
    pub(crate) denied_anywhere: bool,
    /// So many IPv4 prefixes are on the deny list of the pattern `listed`
    #[arg(long, value_name = "N", default_value_t = LISTED_PREFIXES,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LISTED_PREFIXES)))]
    pub(crate) listed: u32,
    /// Length of those prefixes
    #[arg(long, value_name = "BITS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(16..=31))]
    pub(crate) listed_length: u32,
    /// Measure only these patterns of traffic
    #[arg(long, value_enum, value_delimiter = ',')]
    pattern: Vec<Pattern>,
    /// Measure only these contenders
    #[arg(long, value_enum, value_delimiter = ',')]
    contender: Vec<Contender>,
    /// Measure only sources of this kind
    #[arg(long, value_enum, value_delimiter = ',')]
    family: Vec<Family>,
}

impl Arguments {
    /// Whether `cell` is to be measured.
    pub(crate) fn takes(&self, cell: &Cell) -> bool {
        (self.pattern.is_empty() || self.pattern.contains(&cell.pattern))
            && (self.contender.is_empty() || self.contender.contains(&cell.contender))
            && (self.family.is_empty() || self.family.contains(&cell.family))
            && (self.denied > 0 || cell.contender != Contender::LimiterDenying)
    }

    /// Rounds to measure.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// How long one measurement of live packets takes, warming up not included.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_millis(if self.quick { 120 } else { 500 })
    }

    /// Runs of one measurement in `BPF_PROG_TEST_RUN`.
    pub(crate) fn runs(&self) -> u32 {
        if self.quick { 200_000 } else { 1_000_000 }
    }
}
