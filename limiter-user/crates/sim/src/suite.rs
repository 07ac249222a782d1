//! The built-in scenarios.

use std::path::Path;

use super::scenario::Scenario;
use model::Invalid;

/// Their texts, as a user would write them.
// In the binary, so that a user has them without the sources and `--print` shows what is really
// run.
const TEXTS: &[(&str, &str)] = &[
    ("spread", include_str!("suite/spread.toml")),
    ("zipf", include_str!("suite/zipf.toml")),
    ("many", include_str!("suite/many.toml")),
    ("one", include_str!("suite/one.toml")),
    ("step", include_str!("suite/step.toml")),
    ("hopping", include_str!("suite/hopping.toml")),
    ("conforming", include_str!("suite/conforming.toml")),
    ("cold", include_str!("suite/cold.toml")),
    ("crowd", include_str!("suite/crowd.toml")),
    ("diurnal", include_str!("suite/diurnal.toml")),
    ("loss", include_str!("suite/loss.toml")),
    ("far", include_str!("suite/far.toml")),
    ("satellite", include_str!("suite/satellite.toml")),
    ("partition", include_str!("suite/partition.toml")),
    ("one-way", include_str!("suite/one-way.toml")),
    ("pause", include_str!("suite/pause.toml")),
    ("restart", include_str!("suite/restart.toml")),
    ("crash", include_str!("suite/crash.toml")),
    ("reboot", include_str!("suite/reboot.toml")),
    ("join", include_str!("suite/join.toml")),
    ("leave", include_str!("suite/leave.toml")),
    ("founded", include_str!("suite/founded.toml")),
    ("founder", include_str!("suite/founder.toml")),
    ("majority", include_str!("suite/majority.toml")),
    ("suspect", include_str!("suite/suspect.toml")),
    ("chaos", include_str!("suite/chaos.toml")),
    ("regions-spread", include_str!("suite/regions-spread.toml")),
    ("regions-one", include_str!("suite/regions-one.toml")),
    ("regions-step", include_str!("suite/regions-step.toml")),
    ("regions-cut", include_str!("suite/regions-cut.toml")),
    ("regions-crash", include_str!("suite/regions-crash.toml")),
    ("regions-lossy", include_str!("suite/regions-lossy.toml")),
    ("regions-overhead", include_str!("suite/regions-overhead.toml")),
    ("overhead", include_str!("suite/overhead.toml")),
    ("members", include_str!("suite/members.toml")),
];

/// The text of a built-in scenario.
///
/// # Errors
/// If there is none of that name.
pub fn text(name: &str) -> Result<&'static str, Invalid> {
    match TEXTS.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => Ok(text),
        None => {
            let names: Vec<_> = TEXTS.iter().map(|(name, _)| *name).collect();
            let error = Invalid::new(format!("there is no scenario {name:?}"));
            Err(error.with_hint(format!("there is {}", names.join(", "))))
        }
    }
}

/// A built-in scenario.
///
/// # Errors
/// As [`text`].
pub fn named(name: &str) -> Result<Scenario, Invalid> {
    Scenario::parse(Path::new(name), text(name)?)
}

/// All built-in scenarios.
///
/// # Errors
/// None: a test reads them all.
pub fn suite() -> Result<Vec<Scenario>, Invalid> {
    TEXTS.iter().map(|(name, text)| Scenario::parse(Path::new(name), text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Explain as _;

    #[test]
    fn all_are_good_and_fit_other_sizes() {
        let suite = suite().unwrap();
        assert!(suite.len() >= 10);
        for (scenario, (name, _)) in suite.iter().zip(TEXTS) {
            assert_eq!((&scenario.name[..], scenario.about.is_empty()), (*name, false));
            for hosts in [4, 10, 100] {
                scenario.with_hosts(hosts).unwrap();
            }
        }
        assert!(named("spraed").unwrap_err().hint().unwrap().contains("spread"));
    }
}
