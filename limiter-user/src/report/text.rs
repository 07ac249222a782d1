//! How tables, numbers and times look.

use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};

/// A table with a header and no lines, its columns from `numbers_from` on aligned to the right.
pub(super) fn table(header: &[&str], numbers_from: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if column.index >= numbers_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A moment as RFC 3339 with milliseconds.
pub(super) fn time(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

/// A number of seconds as `1h 2m 3s`.
pub(super) fn seconds(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// A size in binary units, rounded: memory, not a limit.
pub(super) fn size(bytes: u64) -> String {
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

/// A number with at most four digits and a decimal prefix: `950`, `12.3k`, `4.00G`.
pub(crate) fn si(value: f64) -> String {
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
    fn sizes_are_rounded_to_their_unit() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(2 << 20), "2.0 MiB");
        assert_eq!(size(1536), "1.5 KiB");
    }
}
