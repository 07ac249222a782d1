//! Measures everything once per round, the contenders in turn.

use std::collections::BTreeMap;

use tests::machine::Machine;

use crate::{
    arguments::Arguments,
    cell::{Cell, Pattern},
    outcome::{Line, Outcome, Round},
    stand::Stands,
    traffic::{Generator, available_cpus},
};

/// Frames before each measurement, which fill caches and tables and tell how many frames it takes.
const WARM_UP: u32 = 1 << 17;

/// Builds everything and measures it.
///
/// # Panics
/// If something cannot be built or the kernel refuses.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let cells = Pattern::ALL.into_iter().flat_map(Cell::with_pattern);
    let enough = |cell: &Cell| {
        let enough = cell.pattern.cpus() <= available_cpus();
        if !enough {
            eprintln!("left out, for want of CPUs: {}", cell.pattern.name());
        }
        enough
    };
    let cells: Vec<Cell> = cells.filter(|cell| arguments.takes(cell)).filter(enough).collect();
    eprintln!("building a wire for each contender");
    let mut stands = Stands::new(arguments, &cells);
    let generator = Generator::new(cells.iter().map(|cell| cell.pattern.cpus()).max().unwrap_or(1));
    let mut lines: Vec<Line> = cells.into_iter().map(Line::new).collect();
    let rounds = arguments.rounds();
    // Rounds outside, contenders inside: a machine that slows down meanwhile slows all of them.
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for pattern in Pattern::ALL {
            let mut lines = lines.iter_mut().filter(|it| it.cell.pattern == pattern).peekable();
            if lines.peek().is_some() {
                stands.set_limits(pattern);
            }
            for line in lines {
                let measured = measure(arguments, &mut stands, &generator, &line.cell);
                line.rounds.push(measured);
            }
        }
    }
    lines.iter_mut().for_each(Line::summarise);
    Outcome::new(Machine::read(), rounds, lines)
}

fn measure(
    arguments: &Arguments,
    stands: &mut Stands,
    generator: &Generator,
    cell: &Cell,
) -> Round {
    let Cell { pattern, family, .. } = *cell;
    let lab = stands.lab(cell);
    let warm = generator.send(lab, pattern, family, WARM_UP);
    let frames = (warm.mpps * 1e6 * arguments.length().as_secs_f64()) as u32;
    let frames = frames.max(WARM_UP);
    let before = (stands.admitted(cell), stands.reasons(cell));
    let live = generator.send(lab, pattern, family, frames);
    let share = |after: u64, before: u64| (after - before) as f64 / f64::from(frames);
    let admitted = stands.admitted(cell).zip(before.0);
    let admitted = admitted.map(|(after, before)| share(after, before));
    let reasons = stands.reasons(cell).into_iter().zip(before.1);
    let reasons = reasons.map(|((reason, after), (_, before))| (reason, share(after, before)));
    let reasons: BTreeMap<_, _> = reasons.filter(|(_, share)| *share > 0.0).collect();
    let passes = |reason: &str| reason.starts_with("pass/");
    let passed = reasons.iter().filter(|(reason, _)| passes(reason)).map(|(_, share)| share);
    let passed = (!reasons.is_empty()).then(|| passed.fold(0.0, |all, share| all + share));
    // A forced drop hides from nftables what was admitted.
    let admitted = admitted.or(passed);
    let cost = stands.program(cell).filter(|_| cell.is_compared());
    let cost = cost.map(|program| generator.cost(&program, pattern, family, arguments.runs()));
    let (ns, net_ns) = cost.unzip();
    Round { frames, mpps: live.mpps, ns, net_ns, admitted, reasons, lost: live.lost }
}
