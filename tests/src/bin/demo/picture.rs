//! A picture of traffic for a terminal of 80 columns.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// Frames in one second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Second {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) dropped: u64,
}

impl Second {
    /// What is not admitted is dropped.
    pub(crate) fn new(offered: u64, admitted: u64) -> Self {
        Self { offered, admitted, dropped: offered.saturating_sub(admitted) }
    }
}

/// Traffic of one kind.
pub(crate) struct Series<'a> {
    pub(crate) title: String,
    pub(crate) seconds: &'a [Second],
}

/// How a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// With characters of ASCII.
    Plain,
    /// With blocks in colours.
    Colour,
}

/// Columns of a bar.
const WIDTH: usize = 36;
/// Codes of colours.
const GREEN: u8 = 32;
const RED: u8 = 31;
/// Parts of a column, from none to seven eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

impl Style {
    /// What suits `out`.
    pub(crate) fn new(out: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let plain = set("NO_COLOR").is_some() || set("TERM").is_none_or(|term| term == "dumb");
        if plain || !out.is_terminal() { Self::Plain } else { Self::Colour }
    }

    /// `text` in one of the terminal's colours.
    fn paint(self, colour: u8, text: &str) -> String {
        match self {
            Self::Colour if !text.is_empty() => format!("\x1b[{colour}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }

    /// A bar of so many of `WIDTH` columns: what is admitted, then what is dropped. Neither is invisible if
    /// there is any.
    pub(crate) fn bar(self, second: Second, largest: u64) -> String {
        let columns = |count: u64| count as f64 / largest.max(1) as f64 * WIDTH as f64;
        let (bar, used) = match self {
            Self::Plain => {
                let cells = at_least_one(columns(second.admitted), second.admitted);
                ("#".repeat(cells), cells)
            }
            Self::Colour => {
                let eighths = at_least_one(columns(second.admitted) * 8.0, second.admitted);
                let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
                (bar, eighths.div_ceil(8))
            }
        };
        let rest = (columns(second.offered).round() as usize).saturating_sub(used);
        let dropped = if second.dropped > 0 { rest.max(1) } else { 0 };
        // One column more, for a drop beside a full bar.
        let padding = (WIDTH + 1).saturating_sub(used + dropped);
        let light = if self == Self::Plain { "." } else { "░" }.repeat(dropped);
        format!("{}{}{}", self.paint(GREEN, &bar), self.paint(RED, &light), " ".repeat(padding))
    }
}

fn at_least_one(length: f64, count: u64) -> usize {
    (length.round() as usize).max(usize::from(count > 0))
}

/// Draws all series on one scale.
pub(crate) fn draw(out: &mut impl Write, style: Style, all: &[Series<'_>]) -> io::Result<()> {
    let seconds = || all.iter().flat_map(|series| series.seconds);
    let largest = seconds().map(|second| second.offered).max().unwrap_or(0);
    let block = |offered, admitted| {
        // Two columns.
        let bar = style.bar(Second::new(offered, admitted), WIDTH as u64);
        bar.trim_end().to_owned()
    };
    let (admitted, dropped) = (block(2, 2), block(2, 0));
    let title = format!("packets a second:  {admitted} admitted  {dropped} dropped");
    // Colours take no room.
    let visible = "packets a second:  ## admitted  .. dropped".len();
    let padding = " ".repeat((8 + WIDTH).saturating_sub(visible));
    writeln!(out, "{title}{padding}{:>9} {:>10} {:>10}", "offered", "admitted", "dropped")?;
    for series in all {
        writeln!(out, "{}", series.title)?;
        for (at, second) in (1..).zip(series.seconds) {
            writeln!(
                out,
                "{at:>4}   {}{:>9} {:>10} {:>10}",
                style.bar(*second, largest),
                grouped(second.offered),
                grouped(second.admitted),
                grouped(second.dropped)
            )?;
        }
    }
    Ok(())
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(style: Style) -> String {
        let flood = [Second::new(25_000, 3000), Second::new(25_000, 1000)];
        let customers = [Second::new(5900, 5900), Second::new(0, 0)];
        let all = [
            Series { title: "flood".to_owned(), seconds: &flood },
            Series { title: "customers".to_owned(), seconds: &customers },
        ];
        let mut out = Vec::new();
        draw(&mut out, style, &all).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bars_are_as_long_as_what_was_offered() {
        let expected = "\
packets a second:  ## admitted  .. dropped    offered   admitted    dropped
flood
   1   ####................................    25,000      3,000     22,000
   2   #...................................    25,000      1,000     24,000
customers
   1   ########                                 5,900      5,900          0
   2                                                0          0          0
";
        assert_eq!(drawn(Style::Plain), expected);
    }

    #[test]
    fn a_terminal_gets_eighths_and_colours_in_the_same_columns() {
        let mut text = drawn(Style::Colour);
        assert!(text.contains("\x1b[32m████▍\x1b[0m\x1b[31m░░░░"), "{text}");
        for code in ["\x1b[32m", "\x1b[31m", "\x1b[0m"] {
            text = text.replace(code, "");
        }
        let columns = |text: &str| text.lines().map(|l| l.chars().count()).collect::<Vec<_>>();
        assert_eq!(columns(&text), columns(&drawn(Style::Plain)));
        assert!(columns(&text).iter().all(|&columns| columns <= 80), "{text}");
    }

    #[test]
    fn little_is_seen_beside_much() {
        let bar = |offered, admitted| Style::Plain.bar(Second::new(offered, admitted), 1_000_000);
        assert_eq!(bar(1, 1).trim_end(), "#");
        assert_eq!(bar(1_000_000, 1).trim_end(), format!("#{}", ".".repeat(WIDTH - 1)));
        assert_eq!(bar(1_000_000, 999_999).len(), WIDTH + 1);
        assert_eq!(bar(0, 0).trim_end(), "");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
