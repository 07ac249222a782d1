//! Measures everything once per round, the contenders in turn.

use tests::machine::Machine;

use crate::{
    arguments::Arguments,
    cell::{Cell, Pattern},
    outcome::{Line, Outcome, Round},
    stand::Stands,
    traffic::Generator,
};

/// Frames before each measurement, which fill caches and tables and tell how many frames it takes.
const WARM_UP: u32 = 1 << 17;

/// Builds everything and measures it.
///
/// # Panics
/// If something cannot be built or the kernel refuses.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    eprintln!("building a wire for each contender");
    let mut stands = Stands::new(arguments.denied, arguments.denied_anywhere);
    let generator = Generator::new();
    let mut lines: Vec<Line> = Vec::new();
    for pattern in Pattern::ALL {
        let cells = Cell::with_pattern(pattern).into_iter().filter(|cell| arguments.takes(cell));
        lines.extend(cells.map(Line::new));
    }
    let rounds = arguments.rounds();
    // Rounds outside, contenders inside: a machine that slows down meanwhile slows all of them.
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for pattern in Pattern::ALL {
            stands.set_limit(pattern.limit());
            for line in lines.iter_mut().filter(|line| line.cell.pattern == pattern) {
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
    let Cell { contender, pattern, family, .. } = *cell;
    let lab = stands.lab(cell);
    let warm = generator.send(lab, pattern, family, WARM_UP);
    let frames = (warm.mpps * 1e6 * arguments.length().as_secs_f64()) as u32;
    let frames = frames.max(WARM_UP);
    let before = stands.admitted(cell);
    let live = generator.send(lab, pattern, family, frames);
    let admitted = stands.admitted(cell).zip(before);
    let admitted = admitted.map(|(after, before)| (after - before) as f64 / f64::from(frames));
    let ns = stands.program(contender).filter(|_| cell.is_compared()).map(|program| {
        // Its time is thrown away: it fills caches and branch predictors.
        generator.cost(&program, pattern, family, arguments.runs() / 4);
        generator.cost(&program, pattern, family, arguments.runs())
    });
    Round { mpps: live.mpps, ns, admitted, lost: live.lost }
}
