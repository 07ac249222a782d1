//! How tables, numbers and times look.

use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};

use super::Terminal;

/// A table with a header and no lines, its columns from `numbers_from` on aligned to the right.
pub fn table(header: &[&str], numbers_from: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in table.column_iter_mut() {
        // Nothing on the left, so that lines begin where the shell's do.
        column.set_padding((0, 2));
        if column.index >= numbers_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The rank of a column that is never left out.
pub const KEEP: u8 = 0;

/// A table as [`table`]. On a terminal columns are left out until it fits, those of the highest rank first.
pub fn fitted(
    columns: &[(&str, u8)],
    numbers_from: usize,
    rows: impl IntoIterator<Item = impl Into<Vec<String>>>,
    terminal: Option<&Terminal>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().map(Into::into).collect();
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].as_str()).chain([columns[at].0]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = kept.iter().copied().map(width).collect();
    let is_too_wide = |kept: &[usize]| {
        let all = kept.iter().map(|at| widths[*at] + 2).sum::<usize>();
        terminal.is_some_and(|terminal| all > usize::from(terminal.width) + 2)
    };
    // Whole columns go, those that matter least first: a line that wraps cannot be read as a table.
    while is_too_wide(&kept)
        && let Some(last) = (0..kept.len()).max_by_key(|at| columns[kept[*at]].1)
        && columns[kept[last]].1 > KEEP
    {
        kept.remove(last);
    }
    let header: Vec<_> = kept.iter().map(|at| columns[*at].0).collect();
    let numbers_from = kept.iter().filter(|at| **at < numbers_from).count();
    let mut table = table(&header, numbers_from);
    for row in &rows {
        table.add_row(kept.iter().map(|at| &row[*at]));
    }
    table.trim_fmt()
}

/// How long ago a moment was, in three characters or four.
pub fn ago(moment: SystemTime, now: SystemTime) -> String {
    // A clock that was set back makes the past the future.
    let seconds = now.duration_since(moment).unwrap_or_default().as_secs();
    match seconds {
        0..100 => format!("{seconds}s"),
        100..6000 => format!("{}m", seconds / 60),
        6000..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A moment as RFC 3339: as it is, on a terminal how long ago it was.
pub fn since(moment: Option<&String>, terminal: Option<&Terminal>) -> String {
    let Some(text) = moment else { return String::new() };
    let age = terminal.zip(humantime::parse_rfc3339(text).ok());
    age.map_or_else(|| text.clone(), |(terminal, moment)| ago(moment, terminal.now))
}

/// The headers of columns of moments, first and last.
pub const fn seen_headers(terminal: Option<&Terminal>) -> [&'static str; 2] {
    if terminal.is_some() { ["FIRST", "LAST"] } else { ["FIRST SEEN", "LAST SEEN"] }
}

/// A moment as RFC 3339 with milliseconds.
pub fn time(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

/// A number of seconds as `1h 2m 3s`.
pub fn seconds(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// A size in binary units, rounded: memory, not a limit.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// A whole number with its thousands apart: `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with at most four digits and a decimal prefix: `950`, `12.3k`, `4.00G`.
pub fn si(value: f64) -> String {
    let mut value = value.max(0.0);
    for prefix in ["", "k", "M", "G", "T", "P"] {
        // What would be rounded up to a thousand has the next prefix.
        if value < 999.5 || prefix == "P" {
            return match prefix {
                "" => format!("{value:.0}"),
                _ if value < 9.995 => format!("{value:.2}{prefix}"),
                _ if value < 99.95 => format!("{value:.1}{prefix}"),
                _ => format!("{value:.0}{prefix}"),
            };
        }
        value /= 1000.0;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.4, 999.4, 999.6, 12_345.0, 4e9, 999_600.0, 123_456.0, 2.5e16];
        assert_eq!(
            texts.map(si),
            ["0", "999", "1.00k", "12.3k", "4.00G", "1.00M", "123k", "25.0P"]
        );
    }

    #[test]
    fn a_table_leaves_out_what_does_not_fit() {
        let columns = [("NAME", KEEP), ("MINOR", 2), ("COUNT", 1)];
        let rows = || [["a", "0123456789", "7"].map(String::from)];
        let print = |width| {
            let terminal = Terminal { width, now: SystemTime::UNIX_EPOCH };
            fitted(&columns, 2, rows(), Some(&terminal))
        };
        let complete = "NAME  MINOR       COUNT\na     0123456789      7";
        assert_eq!(fitted(&columns, 2, rows(), None), complete);
        assert_eq!(print(23), complete);
        assert_eq!(print(22), "NAME  COUNT\na         7");
        assert_eq!(print(10), "NAME\na");
        assert_eq!(print(0), "NAME\na");
    }

    #[test]
    fn moments_are_ages_on_a_terminal() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let terminal = Terminal { width: 80, now };
        let text = time(SystemTime::UNIX_EPOCH + Duration::from_secs(400));
        assert_eq!(since(Some(&text), Some(&terminal)), "10m");
        assert_eq!(since(Some(&text), None), "1970-01-01T00:06:40.000Z");
        assert_eq!(since(None, Some(&terminal)), "");
    }

    #[test]
    fn sizes_are_rounded_to_their_unit() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(2 << 20), "2.0 MiB");
        assert_eq!(size(1536), "1.5 KiB");
    }
}
