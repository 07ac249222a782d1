//! Prints the outcome for people.

use std::io::{self, Write};

use crate::{
    cell::{Family, Pattern},
    contender::Contender,
    outcome::{Line, Outcome},
};

/// Writes tables and what they mean.
pub(crate) fn print(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    let machine = &outcome.machine;
    let kind = if machine.virtual_machine { "virtual machine" } else { "no virtual machine" };
    writeln!(
        out,
        "machine  {}, {} CPUs, {} MiB, {kind}, load {:.2}",
        machine.processor, machine.cpus, machine.memory_mib, machine.load
    )?;
    writeln!(out, "kernel   {}", machine.kernel)?;
    writeln!(
        out,
        "mode     {}; generator and receiver share one CPU; frames of 64 bytes (IPv4), 84 (IPv6)",
        outcome.mode
    )?;
    writeln!(
        out,
        "noise    ±{:.1} % (half of slowest to fastest round, median over lines), {} rounds\n",
        100.0 * outcome.noise(),
        outcome.round_count
    )?;
    lines(
        out,
        "live: millions of packets received per second; test run: ns per packet",
        &outcome.results,
    )?;
    writeln!(
        out,
        "`forced`: the same program, but that it answers with a drop whatever it decides, so that only \
         the limiter\nis measured. ns include the writing of the source address and the call, which is \
         what xdp-drop takes; net ns do not.\n`admitted`: share of packets \
         within the limit; `lost`: those that found no room in the queue.\n"
    )?;
    lines(
        out,
        "as an operator attaches them; packets they pass are dropped by nftables",
        &outcome.passing,
    )?;
    ratios(out, outcome)
}

fn lines(out: &mut impl Write, title: &str, lines: &[Line]) -> io::Result<()> {
    writeln!(out, "{title}")?;
    writeln!(
        out,
        "{:<14} {:<6} {:<15} {:<9} {:>15} {:>7} {:>8} {:>7} {:>7} {:>8} {:>8}",
        "sources",
        "family",
        "contender",
        "entry",
        "limit pps/burst",
        "Mpps",
        "noise",
        "ns",
        "net ns",
        "admitted",
        "lost"
    )?;
    for line in lines {
        let (cell, limit) = (&line.cell, line.cell.pattern.limit());
        let lost = line.rounds.iter().map(|round| round.lost).fold(0.0, f64::max);
        let ns = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        let entry = format!("{:?}", cell.entry).to_lowercase();
        writeln!(
            out,
            "{:<14} {:<6} {:<15} {entry:<9} {:>15} {:>7.3} {:>8} {:>7} {:>7} {:>8} {:>7.2}%",
            cell.pattern.name(),
            cell.family.name(),
            cell.contender.name(),
            format!("{}/{}", limit.rate, limit.burst),
            line.mpps,
            format!("±{:.1}%", 100.0 * line.noise),
            ns(line.ns),
            ns(line.net_ns),
            line.admitted.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", 100.0 * share)),
            100.0 * lost
        )?;
    }
    writeln!(out)
}

fn ratios(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(
        out,
        "limiter against the others, limiter-denying and limiter-cluster against limiter (IPv4, ratio of Mpps, goal in brackets)"
    )?;
    write!(out, "{:<8}", "sources")?;
    let others = || {
        let is_other = |it: &Contender| !matches!(it, Contender::Limiter | Contender::Floor);
        Contender::ALL.into_iter().filter(is_other)
    };
    for other in others() {
        write!(out, " {:>20}", other.name())?;
    }
    writeln!(out)?;
    for pattern in Pattern::COMPARED {
        write!(out, "{:<8}", pattern.name())?;
        for other in others() {
            let ratio = outcome.ratios.iter().find(|r| r.pattern == pattern && r.against == other);
            let text = ratio.map_or_else(String::new, |ratio| {
                let missed = if ratio.met { "" } else { " MISSED" };
                format!("{:.2} [{:.2}]{missed}", ratio.ratio, ratio.goal)
            });
            write!(out, " {text:>20}")?;
        }
        writeln!(out)?;
    }
    let six = |pattern: Pattern| {
        let speed = |who| Some(outcome.line(who, pattern, Family::Ipv6)?.mpps);
        let ratio = speed(Contender::Limiter)? / speed(Contender::XdpDrop)?;
        Some(format!("{} {ratio:.2}", pattern.name()))
    };
    let text = Pattern::ALL.into_iter().filter_map(six);
    summary(out, "IPv6, limiter against xdp-drop", text)?;
    let floor = |pattern: Pattern| {
        let cost = |who| outcome.line(who, pattern, Family::Ipv4)?.net_ns;
        let (ours, least) = (cost(Contender::Limiter)?, cost(Contender::Floor)?);
        Some(format!("{} {ours:.0}/{least:.0}", pattern.name()))
    };
    let text = Pattern::ALL.into_iter().filter_map(floor);
    summary(out, "net ns, limiter/floor (IPv4)", text)?;
    let two = |who: Contender| {
        let speed = |pattern| Some(outcome.line(who, pattern, Family::Ipv4)?.mpps);
        let ratio = speed(Pattern::AggregateTwo)? / speed(Pattern::Aggregate)?;
        Some(format!("{} {ratio:.2}", who.name()))
    };
    let text = Contender::ALL.into_iter().filter_map(two);
    summary(out, "aggregate, Mpps of two CPUs against one (IPv4)", text)
}

/// A line, unless there is nothing to tell.
fn summary(
    out: &mut impl Write,
    title: &str,
    items: impl Iterator<Item = String>,
) -> io::Result<()> {
    let items: Vec<_> = items.collect();
    if items.is_empty() { Ok(()) } else { writeln!(out, "{title}: {}", items.join(", ")) }
}
