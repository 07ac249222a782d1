//! Tables on a terminal.

use std::io::{self, Write};

/// Prints `rows` under `header`, the first `left` columns to the left and all others to the right.
pub(crate) fn print<const N: usize>(
    out: &mut impl Write,
    header: [&str; N],
    left: usize,
    rows: &[[String; N]],
) -> io::Result<()> {
    // By characters: ε and δ have two bytes each.
    let mut widths = header.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let header = header.map(str::to_owned);
    for row in std::iter::once(&header).chain(rows) {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
