//! All figures of a run, what they had to be, and how they are printed.

use std::io::{self, Write};

use serde::Serialize;
use tests::machine::Machine;

use crate::{
    measure::{Contender, PING, Row, SCRIPT},
    packets::Packets,
    plan::{Fault, HOSTS, Load, Mode, TASKS},
    still::Still,
    table,
};

/// What a figure had to be.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    name: String,
    figure: f64,
    goal: f64,
    is_met: bool,
    /// What was missing then, if it is the goal of a row.
    #[serde(flatten)]
    still: Option<Still>,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) store: &'static str,
    pub(crate) on_error: String,
    pub(crate) quick: bool,
    pub(crate) hosts: usize,
    pub(crate) tasks: u32,
    pub(crate) results: Vec<Row>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) packets: Vec<Packets>,
    pub(crate) goals: Vec<Goal>,
}

/// All goals, by what was measured.
pub(crate) fn goals(rows: &[Row], contenders: &[Contender], packets: &[Packets]) -> Vec<Goal> {
    let at_least = |name: String, figure: f64, goal: f64| Goal {
        name,
        figure,
        goal,
        is_met: figure >= goal,
        still: None,
    };
    let at_most = |name: String, figure: f64, goal: f64| Goal {
        is_met: figure <= goal,
        ..at_least(name, figure, goal)
    };
    let find = |mode, load, fault| {
        rows.iter().find(move |row| (row.mode, row.load, row.fault) == (mode, load, fault))
    };
    let of = |asks| contenders.iter().filter(move |contender| contender.asks == asks);
    let faster = of(SCRIPT).max_by(|a, b| a.speed.per_second.total_cmp(&b.speed.per_second));
    let mut goals = Vec::new();
    if let (Some(strict), Some(script)) = (find(Mode::Strict, Load::Steady, Fault::None), faster) {
        goals.push(at_least(
            format!(
                "strict: decisions beside those of the script by {} connections",
                script.connections.name()
            ),
            strict.speed.per_second / script.speed.per_second,
            2.0,
        ));
        if let Some(ping) = of(PING).find(|ping| ping.connections == script.connections) {
            goals.push(at_most(
                format!(
                    "strict: p99 beside that of a bare round trip by {} connections",
                    ping.connections.name()
                ),
                strict.speed.p99_us / ping.speed.p99_us,
                3.0,
            ));
        }
    }
    if let Some((calls, speed)) = Packets::goals(packets) {
        goals.push(at_most("strict, packets: calls of the store a second".into(), calls, 20_000.0));
        let name = "strict, packets: speed while the store is paused, beside that before".into();
        goals.push(at_least(name, speed, 0.95));
    }
    for row in rows {
        let Row { mode, load, fault, .. } = row;
        let name = format!("{}, {}, {}", mode.name(), load.name(), fault.name());
        let of_row = goals.len();
        goals.push(at_most(
            format!("{name}: worst second beyond the promise, %"),
            100.0 * row.worst_overage,
            0.1,
        ));
        if row.fault == Fault::None {
            goals.push(at_least(format!("{name}: utilisation"), row.utilisation, 0.95));
        }
        if let (Mode::Strict, Fault::Paused | Fault::Killed, Some(answers)) =
            (mode, fault, row.answers)
        {
            goals.push(at_most(format!("{name}: longest decision, ms"), answers.max_ms, 50.0));
        }
        goals[of_row..].iter_mut().for_each(|goal| goal.still = Some(row.still));
    }
    goals
}

impl Figures {
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.machine.print(out)?;
        writeln!(
            out,
            "\n{HOSTS} hosts with {TASKS} decisions in flight each, {}, on_error: {}",
            self.store, self.on_error
        )?;
        writeln!(
            out,
            "Speed: all is within its limit, and the next decision begins when the last one ends. Paced (*) and judged: {} keys \
             are asked about beyond their limit, at a fixed rate.\n\
             Promise for T = 1 s: burst + rate · T, of each host (host), of all (cluster, strict), and a tenth of a burst more \
             of each host (synced). A second in which answers change to those of on_error, or back, may have one more burst; with floors, these \
             more while on_error answers.\n\
             Still: the longest time in which a CPU of this machine ran nothing at all, while a row was judged.\n",
            Load::Steady.tracked()
        )?;
        self.print_results(out)?;
        writeln!(out)?;
        self.print_faults(out)?;
        writeln!(out)?;
        let contender = |contender: &Contender| {
            let speed = contender.speed;
            let figures = [speed.per_second, speed.p50_us, speed.p99_us, speed.p999_us];
            let [per_second, p50, p99, p999] = figures.map(|figure| format!("{figure:.0}"));
            [
                contender.asks.to_owned(),
                contender.connections.name().to_owned(),
                per_second,
                p50,
                p99,
                p999,
            ]
        };
        let rows: Vec<_> = self.contenders.iter().map(contender).collect();
        let header = ["asks the store", "connections", "a second", "p50 µs", "p99 µs", "p99.9 µs"];
        table::print(out, header, 2, &rows)?;
        writeln!(out)?;
        table::print(
            out,
            Packets::HEADER,
            1,
            &self.packets.iter().map(Packets::row).collect::<Vec<_>>(),
        )?;
        let missed: Vec<_> = self.goals.iter().filter(|goal| !goal.is_met).collect();
        let met = self.goals.len() - missed.len();
        writeln!(out, "\n{met} of {} goals are met", self.goals.len())?;
        for goal in self.goals.iter().take(4).filter(|goal| goal.is_met) {
            writeln!(out, "met: {}: {:.2}, goal {}", goal.name, goal.figure, goal.goal)?;
        }
        for goal in missed {
            let Goal { name, figure, goal: wanted, still, .. } = goal;
            write!(out, "missed: {name}: {figure:.2}, goal {wanted}")?;
            match still {
                Some(still) => writeln!(out, "; {still}")?,
                None => writeln!(out)?,
            }
        }
        out.flush()
    }

    fn print_results(&self, out: &mut impl Write) -> io::Result<()> {
        let count = |figure: Option<f64>| figure.map_or(String::new(), |it| format!("{it:.0}"));
        let row = |row: &Row| {
            let speed = row.speed;
            let mark = if row.paced { "*" } else { "" };
            let bytes = match row.bytes_per_key_here {
                Some(here) => format!("{} + {here:.0}", count(row.bytes_per_key)),
                None => count(row.bytes_per_key),
            };
            [
                row.load.name().to_owned(),
                row.mode.name().to_owned(),
                format!("{:.0}{mark}", speed.per_second),
                format!("{:.1}", speed.p50_us),
                format!("{:.1}", speed.p99_us),
                format!("{:.1}", speed.p999_us),
                format!("{:.1} %", 100.0 * row.worst_overage),
                format!("{:.3}", row.utilisation),
                count(row.calls_per_second),
                bytes,
                format!("{:.0}", row.still.still_ms),
            ]
        };
        let rows: Vec<_> =
            self.results.iter().filter(|row| row.fault == Fault::None).map(row).collect();
        let header = [
            "load",
            "mode",
            "a second",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "over",
            "used",
            "calls/s",
            "bytes a key",
            "still ms",
        ];
        table::print(out, header, 2, &rows)
    }

    fn print_faults(&self, out: &mut impl Write) -> io::Result<()> {
        let ms = |figure: Option<f64>| figure.map_or(String::new(), |it| format!("{it:.0}"));
        let row = |row: &Row| {
            let answers = row.answers?;
            Some([
                row.fault.name().to_owned(),
                row.mode.name().to_owned(),
                format!("{:.0}", row.speed.p99_us),
                format!("{:.1} %", 100.0 * row.worst_overage),
                format!("{:.1}", row.worst_excess),
                format!("{:.3}", row.utilisation),
                format!("{:.1} %", 100.0 * row.alone),
                format!("{:.1}", answers.max_ms),
                ms(answers.first_ms),
                ms(answers.at_once_ms),
                ms(answers.back_ms),
                format!("{:.0}", row.still.still_ms),
            ])
        };
        let rows: Vec<_> = self.results.iter().filter_map(row).collect();
        let header = [
            "fault",
            "mode",
            "p99 µs",
            "over",
            "beyond",
            "used",
            "on_error",
            "longest ms",
            "first ms",
            "at once ms",
            "back ms",
            "still ms",
        ];
        table::print(out, header, 2, &rows)
    }
}
