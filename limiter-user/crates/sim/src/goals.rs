//! What is to be reached, all in one place. Built-in scenarios have the same in their files, where it fails
//! their runs; a test keeps the two together.

/// A figure of runs of one scenario under one scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The worst overage within any second.
    Overage,
    /// The mean utilisation.
    Utilisation,
    /// The longest time back to 90 % after a step of the demand, s.
    Convergence,
    /// What the host that sends most sends, bytes per second.
    Bytes,
    /// What hosts send to other regions, bytes per second and host.
    Between,
    /// What deciding takes on the host where it takes most, as a part of one core.
    Cpu,
    /// The longest time until all hosts know of each other, s.
    Joined,
    /// The longest time until all hosts know of a crash, s.
    Detected,
}

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Not more.
    AtMost(f64),
    /// Not less.
    AtLeast(f64),
}

impl Bound {
    /// Whether a figure keeps to it.
    pub fn is_met(self, found: f64) -> bool {
        match self {
            // Times are sums of ticks, which rounding makes a little longer than they are.
            Self::AtMost(most) => found <= most + 1e-9,
            Self::AtLeast(least) => found >= least,
        }
    }

    /// The worse one of two figures.
    pub const fn worse(self, one: f64, other: f64) -> f64 {
        match self {
            Self::AtMost(_) => one.max(other),
            Self::AtLeast(_) => one.min(other),
        }
    }
}

/// A goal.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// What it is about.
    pub about: &'static str,
    /// The figure.
    pub figure: Figure,
    /// The scenarios in which it is judged; all in which a limit is kept if there are none.
    pub scenarios: &'static [&'static str],
    /// What it has to be.
    pub bound: Bound,
}

impl Goal {
    /// Whether it is judged in this scenario.
    pub fn is_of(&self, scenario: &str) -> bool {
        self.scenarios.is_empty() || self.scenarios.contains(&scenario)
    }
}

/// All goals.
pub const GOALS: &[Goal] = &[
    Goal {
        about: "worst overage in any second, every scenario",
        figure: Figure::Overage,
        scenarios: &[],
        // A clock may be fast by a thousandth, and what it lets through as well (P6).
        bound: Bound::AtMost(0.001),
    },
    Goal {
        about: "utilisation, spread (over regions, too) and Zipf",
        figure: Figure::Utilisation,
        scenarios: &["spread", "zipf", "regions-spread"],
        bound: Bound::AtLeast(0.98),
    },
    Goal {
        about: "utilisation, one loaded host or region",
        figure: Figure::Utilisation,
        scenarios: &["one", "regions-one"],
        // Floors of idle hosts are never lent: they keep up to 5 % of the limit.
        bound: Bound::AtLeast(0.94),
    },
    Goal {
        about: "back to 90 % after a step",
        figure: Figure::Convergence,
        scenarios: &["step", "hopping", "cold"],
        bound: Bound::AtMost(0.1),
    },
    Goal {
        about: "bytes a host sends, 1000 hot keys",
        figure: Figure::Bytes,
        scenarios: &["overhead"],
        bound: Bound::AtMost(200_000.0),
    },
    Goal {
        about: "CPU of deciding on a host, 1000 hot keys",
        figure: Figure::Cpu,
        scenarios: &["overhead"],
        bound: Bound::AtMost(0.05),
    },
    Goal {
        about: "bytes between regions and host, 1000 hot keys",
        figure: Figure::Between,
        scenarios: &["regions-overhead"],
        // A tenth of what the same hosts send without regions.
        bound: Bound::AtMost(20_000.0),
    },
    Goal {
        about: "all hosts know of each other",
        figure: Figure::Joined,
        scenarios: &["members"],
        bound: Bound::AtMost(5.0),
    },
    Goal {
        about: "all hosts know of a crash",
        figure: Figure::Detected,
        scenarios: &["members"],
        // Until then nobody can vote about the crashed host's share (majority-reclaim).
        bound: Bound::AtMost(10.0),
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Scenario, suite};
    use super::*;

    /// What the file of a scenario says.
    fn of(scenario: &Scenario, figure: Figure) -> Option<Bound> {
        let goals = &scenario.goals;
        let most = |value: Option<f64>| value.map(Bound::AtMost);
        let span =
            |span: Option<super::super::Span>| span.map(|span| Bound::AtMost(span.seconds()));
        match figure {
            Figure::Overage => most(goals.overage.or(Some(scenario.promise().overage))),
            Figure::Utilisation => goals.utilisation.map(Bound::AtLeast),
            Figure::Convergence => span(goals.convergence),
            Figure::Bytes => most(goals.bytes),
            Figure::Between => most(goals.between),
            Figure::Cpu => most(goals.cpu),
            Figure::Joined => span(goals.joined),
            Figure::Detected => span(goals.detected),
        }
    }

    #[test]
    fn scenarios_ask_for_the_same() {
        let suite = suite().unwrap();
        for goal in GOALS {
            for scenario in suite.iter().filter(|scenario| goal.is_of(&scenario.name)) {
                assert_eq!(of(scenario, goal.figure), Some(goal.bound), "{}", scenario.name);
            }
            for name in goal.scenarios {
                assert!(suite.iter().any(|scenario| scenario.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn bounds_have_two_sides() {
        let (most, least) = (Bound::AtMost(0.5), Bound::AtLeast(0.5));
        assert!(most.is_met(0.5) && !most.is_met(0.6) && least.is_met(0.5) && !least.is_met(0.4));
        assert_eq!((most.worse(1.0, 2.0), least.worse(1.0, 2.0)), (2.0, 1.0));
    }
}
