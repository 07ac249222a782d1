//! What a benchmark is told, and where its figures go.

use std::{fs, path::PathBuf, process::ExitCode};

use serde::Serialize;

/// Options of a benchmark.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Where the figures go as JSON.
    pub(crate) json: Option<PathBuf>,
}

impl Arguments {
    /// Those of this process; otherwise the exit code, after an error on stderr.
    pub(crate) fn of_this_process(name: &str) -> Result<Self, ExitCode> {
        let mut arguments = std::env::args_os().skip(1);
        let mut parsed = Self::default();
        while let Some(argument) = arguments.next() {
            if argument != "--json" {
                eprintln!("unknown argument {argument:?}; {name} takes `--json FILE` or nothing");
                return Err(ExitCode::from(2));
            }
            let Some(file) = arguments.next() else {
                eprintln!("--json lacks its file; write `--json FILE`");
                return Err(ExitCode::from(2));
            };
            parsed.json = Some(file.into());
        }
        Ok(parsed)
    }

    /// Writes `figures` where the caller asked for them, if at all.
    pub(crate) fn write(&self, figures: &impl Serialize) -> ExitCode {
        let Some(file) = &self.json else { return ExitCode::SUCCESS };
        let written = serde_json::to_vec_pretty(figures)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(file, text));
        match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot write {}: {error}; name a file that can be", file.display());
                ExitCode::FAILURE
            }
        }
    }
}
