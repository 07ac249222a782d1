//! What came out: every round, medians, and the ratios that are aimed at.

use std::collections::BTreeMap;

use ::tests::machine::Machine;
use serde::Serialize;

use crate::{
    cell::{Cell, Family, Limit, Pattern},
    contender::Contender,
};

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// Packets sent.
    pub(crate) frames: u32,
    /// Millions of packets received per second.
    pub(crate) mpps: f64,
    /// ns per packet in `BPF_PROG_TEST_RUN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns: Option<f64>,
    /// The same without the generator's own cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) net_ns: Option<f64>,
    /// Share of the packets that was within the limit, where that is visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admitted: Option<f64>,
    /// Shares of the packets by what the limiter has counted them under.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) reasons: BTreeMap<String, f64>,
    /// Share of packets that found no room in the queue.
    pub(crate) lost: f64,
}

/// A cell and its measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    limit: Limit,
    /// CPUs that send and receive at once; packets per second are the sum of them.
    cpus: usize,
    /// Median of millions of packets per second.
    pub(crate) mpps: f64,
    /// Median of ns per packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns: Option<f64>,
    /// Median of the same without the generator's own cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) net_ns: Option<f64>,
    /// Half the distance from the slowest round to the fastest, relative to the median.
    pub(crate) noise: f64,
    /// Median share of the packets that was within the limit, where that is visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admitted: Option<f64>,
    pub(crate) rounds: Vec<Round>,
}

impl Line {
    pub(crate) fn new(cell: Cell) -> Self {
        Self {
            cell,
            limit: cell.pattern.limit(),
            cpus: cell.pattern.cpus(),
            mpps: 0.0,
            ns: None,
            net_ns: None,
            noise: 0.0,
            admitted: None,
            rounds: Vec::new(),
        }
    }

    /// Takes the medians of the rounds.
    pub(crate) fn summarise(&mut self) {
        let speeds: Vec<f64> = self.rounds.iter().map(|round| round.mpps).collect();
        // The median, as one round that something else has disturbed would move a mean.
        self.mpps = median(&speeds).unwrap_or(0.0);
        let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = speeds.iter().copied().fold(0.0, f64::max);
        self.noise = if self.mpps > 0.0 { (most - least) / 2.0 / self.mpps } else { 0.0 };
        let middle = |of: fn(&Round) -> Option<f64>| {
            median(&self.rounds.iter().filter_map(of).collect::<Vec<_>>())
        };
        let figures = (middle(|it| it.ns), middle(|it| it.net_ns), middle(|it| it.admitted));
        (self.ns, self.net_ns, self.admitted) = figures;
    }
}

/// How much faster the limiter is than another; of the limiter that does more, how fast that is against
/// the limiter.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) pattern: Pattern,
    pub(crate) against: Contender,
    pub(crate) ratio: f64,
    pub(crate) goal: f64,
    pub(crate) met: bool,
}

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) machine: Machine,
    /// How XDP programs are attached.
    pub(crate) mode: &'static str,
    pub(crate) round_count: u32,
    /// What is compared.
    pub(crate) results: Vec<Line>,
    /// The same XDP limiters attached as an operator would, packets that they pass being dropped
    /// behind them.
    pub(crate) passing: Vec<Line>,
    /// The limiter against the others, with IPv4.
    pub(crate) ratios: Vec<Ratio>,
}

impl Outcome {
    pub(crate) fn new(machine: Machine, round_count: u32, lines: Vec<Line>) -> Self {
        let (results, passing): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.cell.is_compared());
        let ratios = ratios(&results);
        Self { machine, mode: "native XDP on veth", round_count, results, passing, ratios }
    }

    /// The compared line of a contender.
    pub(crate) fn line(
        &self,
        contender: Contender,
        pattern: Pattern,
        family: Family,
    ) -> Option<&Line> {
        find(&self.results, contender, pattern, family)
    }

    /// The median of all lines' noise.
    pub(crate) fn noise(&self) -> f64 {
        let noises: Vec<f64> = self.results.iter().map(|line| line.noise).collect();
        median(&noises).unwrap_or(0.0)
    }
}

fn find(lines: &[Line], who: Contender, what: Pattern, family: Family) -> Option<&Line> {
    let fits = |cell: &Cell| (cell.contender, cell.pattern, cell.family) == (who, what, family);
    lines.iter().find(|line| fits(&line.cell))
}

/// The ratio of packets per second that is aimed at.
const fn goal(pattern: Pattern, against: Contender) -> Option<f64> {
    let (bare, lru, nft, hashlimit) = match pattern {
        Pattern::One => (0.90, 1.15, 2.0, 2.0),
        Pattern::Many => (0.75, 1.4, 2.0, 3.0),
        Pattern::Random => (0.80, 2.5, 2.5, 6.0),
        Pattern::Zipf => (0.80, 1.5, 2.0, 3.0),
        // Figures to look at.
        _ => return None,
    };
    match against {
        Contender::XdpDrop => Some(bare),
        Contender::LruHash => Some(lru),
        Contender::Nft => Some(nft),
        Contender::Hashlimit => Some(hashlimit),
        // What is called noise here.
        Contender::LimiterDenying | Contender::LimiterCluster => Some(0.95),
        Contender::Limiter | Contender::Floor => None,
    }
}

fn ratios(results: &[Line]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for pattern in Pattern::COMPARED {
        let speed = |who| find(results, who, pattern, Family::Ipv4).map(|line| line.mpps);
        let Some(ours) = speed(Contender::Limiter) else { continue };
        for against in Contender::ALL {
            if let (Some(goal), Some(theirs)) = (goal(pattern, against), speed(against)) {
                let ratio = if against.is_ours() { theirs / ours } else { ours / theirs };
                ratios.push(Ratio { pattern, against, ratio, goal, met: ratio >= goal });
            }
        }
    }
    ratios
}

/// The middle of `values`, or the mean of the two there; `None` without values.
fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Entry;

    fn line(contender: Contender, entry: Entry, speeds: &[f64]) -> Line {
        let (pattern, family) = (Pattern::One, Family::Ipv4);
        let mut line = Line::new(Cell { contender, pattern, family, entry });
        line.rounds = speeds
            .iter()
            .map(|&mpps| Round {
                frames: 1,
                mpps,
                ns: Some(9.0),
                net_ns: Some(1.0),
                admitted: Some(0.5),
                reasons: BTreeMap::new(),
                lost: 0.0,
            })
            .collect();
        line.summarise();
        line
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_line_sums_up_its_rounds() {
        let line = line(Contender::Limiter, Entry::Attached, &[2.0, 1.0, 3.0]);
        assert_eq!((line.mpps, line.admitted), (2.0, Some(0.5)));
        assert_eq!((line.ns, line.net_ns), (Some(9.0), Some(1.0)));
        assert!((line.noise - 0.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_of_medians_and_know_the_goal() {
        let results = vec![
            line(Contender::XdpDrop, Entry::Attached, &[4.0]),
            line(Contender::Limiter, Entry::Attached, &[3.0]),
            line(Contender::Nft, Entry::Attached, &[1.0]),
        ];
        let ratios = ratios(&results);
        let of =
            |against| ratios.iter().find(|r| r.pattern == Pattern::One && r.against == against);
        let (bare, nft) = (of(Contender::XdpDrop).unwrap(), of(Contender::Nft).unwrap());
        assert!((bare.ratio - 0.75).abs() < 1e-9 && !bare.met);
        assert!((nft.ratio - 3.0).abs() < 1e-9 && nft.met);
    }
}
