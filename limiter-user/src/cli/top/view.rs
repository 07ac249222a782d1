//! Draws an [`App`]. Nothing here assumes a size of the terminal.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::app::{App, Screen};
use super::filter::Filter;
use super::line::{Line, Name};
use api::Health;
use api::text::{self, si};
use model::source::SourceState;
use model::traffic::GroupBy;

/// Colours, or none: everything is told in words, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Theme {
    colour: bool,
}

impl Theme {
    pub(super) const fn new(colour: bool) -> Self {
        Self { colour }
    }

    fn of(self, colour: Color) -> Style {
        // Bold and reversed stay: NO_COLOR is about colours, and the chosen line must be seen.
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn state(self, state: SourceState) -> Style {
        match state {
            SourceState::Limited => self.of(Color::Red),
            SourceState::Conforming => self.of(Color::Green),
            SourceState::Light => Style::new(),
        }
    }
}

/// How long ago a moment was, if it is known.
// An age, as a time of day takes 24 characters and a subtraction.
fn ago(moment: Option<SystemTime>, now: SystemTime) -> String {
    moment.map(|moment| text::ago(moment, now)).unwrap_or_default()
}

fn sources(line: &Line) -> String {
    line.sources.map(|count| count.to_string()).unwrap_or_default()
}

fn error(line: &Line) -> String {
    line.uncounted.map(|error| format!("+{error}")).unwrap_or_default()
}

/// A column of the list.
struct Column {
    header: &'static str,
    width: u16,
    right: bool,
    /// Where there is little room, columns go from the highest rank on.
    rank: u8,
    cell: fn(&Line, SystemTime) -> String,
}

fn columns(by: GroupBy, has_classes: bool) -> Vec<Column> {
    let column = |header, width, right, rank, cell| Column { header, width, right, rank, cell };
    let of_source = matches!(by, GroupBy::Source | GroupBy::Destination);
    // The ranks keep on the narrowest terminal what one has come for: who is dropped, and who
    // sends most.
    let columns = [
        // Few set limits for classes: for all others the column would be empty.
        (has_classes, column("CLASS", 12, false, 10, |line, _| line.class())),
        (of_source, column("STATE", 10, false, 3, |line, _| line.state.name().into())),
        (of_source, column("LIMIT", 14, false, 6, |line, _| line.limit.clone())),
        (!of_source, column("SOURCES", 8, true, 3, |line, _| sources(line))),
        (!of_source, column("LIMITED", 16, true, 6, |line, _| line.limit.clone())),
        (true, column("PPS", 6, true, 2, |line, _| si(line.pps))),
        (true, column("BITS/S", 6, true, 4, |line, _| si(line.bps))),
        (true, column("PASSED", 10, true, 5, |line, _| line.passed.to_string())),
        (of_source, column("ERROR", 6, true, 7, |line, _| error(line))),
        (true, column("DROPPED", 10, true, 1, |line, _| line.dropped.to_string())),
        (true, column("FIRST", 5, true, 9, |line, now| ago(line.first_seen, now))),
        (true, column("LAST", 5, true, 8, |line, now| ago(line.last_seen, now))),
    ];
    columns.into_iter().filter_map(|(has, column)| has.then_some(column)).collect()
}

/// The columns that fit beside names of `name` characters.
fn fitting(by: GroupBy, name: u16, width: u16, has_classes: bool) -> Vec<Column> {
    let mut all = columns(by, has_classes);
    let mut ranks: Vec<_> = all.iter().map(|column| (column.rank, column.width + 1)).collect();
    // By weight, not by place: the heaviest columns have room first.
    ranks.sort_unstable();
    let mut room = width.saturating_sub(name + 2);
    let mut most = 0;
    for (rank, width) in ranks {
        match room.checked_sub(width) {
            Some(rest) => (room, most) = (rest, rank),
            // Not a narrower one of less weight in its place: columns would come and go in no order.
            None => break,
        }
    }
    all.retain(|column| column.rank <= most);
    all
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, now: SystemTime, theme: Theme) {
    let [head, body, foot] =
        // Of fixed height: else lines would jump under the pointer with each warning that comes or
        // goes.
        Layout::vertical([Constraint::Length(3), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(header(app, theme)), head);
    match &app.screen {
        Screen::List => list(frame, body, app, now, theme),
        Screen::One(name) => one(frame, body, app, name, now, theme),
        Screen::Help => frame.render_widget(help().wrap(Wrap { trim: false }), body),
    }
    frame.render_widget(Paragraph::new(footer(app, theme)), foot);
}

fn header(app: &App, theme: Theme) -> Vec<Text<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut title = vec![Span::styled("limiter top", bold)];
    if app.paused {
        title.push(Span::styled("  PAUSED", bold));
    }
    if let Some((heard, missing)) = &app.hosts {
        title.push(Span::raw(format!("  {heard} of {} hosts", heard + missing.len())));
        if !missing.is_empty() {
            title.push(Span::styled(format!("  without {}", missing.join(", ")), theme.bad()));
        }
    }
    match (&app.trouble, &app.health) {
        // Before the health, which is of the last answer and may be long out of date.
        (Some(trouble), _) => {
            title.push(Span::styled(format!("  NO ANSWER, trying again: {trouble}"), theme.bad()));
        }
        (None, Some((Health::Ok, _))) => {
            title.push(Span::styled("  state ok", theme.of(Color::Green)));
        }
        (None, Some((Health::Degraded, warning))) => {
            let warning = warning.as_deref().unwrap_or_default();
            title.push(Span::styled(format!("  state degraded: {warning}"), theme.bad()));
        }
        (None, None) => {}
    }
    let totals = app.totals.map_or_else(
        || Text::from("passed –  dropped –"),
        |totals| {
            let text = |pps: f64, bps: f64| format!("{} pps {}bit/s", si(pps), si(bps));
            Text::from(vec![
                format!("passed {}  ", text(totals.passed_pps, totals.passed_bps)).into(),
                Span::styled(
                    format!("dropped {}", text(totals.dropped_pps, totals.dropped_bps)),
                    if totals.dropped_pps > 0.0 { theme.of(Color::Red) } else { Style::new() },
                ),
            ])
        },
    );
    let mut about = format!("by {}, most {} first", app.by.name(), app.sort.name());
    if let Some(tracked) = app.tracked {
        about = format!("tracked {tracked}  {about}");
    }
    if app.filter != Filter::All {
        about = format!("filter {}  {about}", app.filter_text);
    }
    if let Some(distinct) = &app.distinct {
        about = format!("{about}  {}", distinct.summary());
    }
    vec![Text::from(title), totals, Text::from(about)]
}

fn footer(app: &App, theme: Theme) -> Text<'static> {
    // In place of the keys: a line of its own would be one less for sources.
    if let Some(complaint) = &app.complaint {
        return Text::styled(complaint.clone(), theme.bad());
    }
    if let Some(typed) = &app.typing {
        return Text::from(format!("filter: {typed}_"));
    }
    Text::from(match app.screen {
        Screen::List => {
            "d dropped  p pps  b bits  k packets  / filter  space pause  enter look  ? help  q quit"
        }
        Screen::One(_) => "esc back  space pause  q quit",
        Screen::Help => "any key back  q quit",
    })
}

fn list(frame: &mut Frame<'_>, area: Rect, app: &App, now: SystemTime, theme: Theme) {
    if app.lines().next().is_none() {
        let text = match (&app.filter, app.all()) {
            // No answer yet says nothing about sources: "none" would be a false comfort.
            _ if app.trouble.is_some() => String::new(),
            (Filter::All, _) | (_, 0) => {
                "No source sends enough to be listed (see `limiter stats` for all packets).".into()
            }
            (_, all) => format!(
                "The filter {} matches none of the {all} heaviest. Esc removes it.",
                app.filter_text
            ),
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
        return;
    }
    let longest = app.lines().map(|line| line.name.text.len()).max().unwrap_or_default();
    // 43 is the longest IPv6 prefix.
    let name = u16::try_from(longest).unwrap_or(u16::MAX).clamp(10, 43);
    let has_classes = app.lines().any(|line| line.name.class.is_some());
    let columns = fitting(app.by, name, area.width, has_classes);
    let align = |text: String, column: &Column| {
        if column.right { Text::from(text).right_aligned() } else { Text::from(text) }
    };
    let title = match app.by {
        GroupBy::Source => "  SOURCE",
        GroupBy::Destination => "  DESTINATION",
        GroupBy::Prefix => "  PREFIX",
        GroupBy::Class | GroupBy::Port => "  CLASS",
    };
    let header = Row::new(
        [Cell::from(title)]
            .into_iter()
            .chain(columns.iter().map(|column| Cell::from(align(column.header.into(), column)))),
    );
    let header = header.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
    let place = app.place();
    // ratatui lays out every row that it gets: what is far outside of the screen needs none.
    let height = usize::from(area.height);
    let first = place.saturating_sub(height.saturating_sub(2));
    let rows = app.lines().enumerate().skip(first).take(height).map(|(at, line)| {
        // A character beside the colour: NO_COLOR and one reader in twelve see none.
        let mark = if line.state == SourceState::Limited { '!' } else { ' ' };
        let pointer = if at == place { '>' } else { ' ' };
        let name = Cell::from(format!("{pointer}{mark}{}", line.name.text));
        let cells = columns.iter().map(|column| {
            let cell = Cell::from(align((column.cell)(line, now), column));
            if column.header == "STATE" { cell.style(theme.state(line.state)) } else { cell }
        });
        Row::new([name].into_iter().chain(cells))
    });
    let widths = [Constraint::Min(name.saturating_add(2))]
        .into_iter()
        .chain(columns.iter().map(|column| Constraint::Length(column.width)));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(place - first);
    frame.render_stateful_widget(table, area, &mut state);
}

fn one(frame: &mut Frame<'_>, area: Rect, app: &App, name: &Name, now: SystemTime, theme: Theme) {
    let [chart, details] =
        // At most half: on a small terminal the chart would push out what `show` says.
        Layout::vertical([Constraint::Length(7.min(area.height / 2)), Constraint::Min(0)])
            .areas(area);
    let past = app.history.of(name);
    // ratatui draws the first values that fit, which are the oldest.
    let width = usize::from(chart.width.saturating_sub(2));
    let recent = &past[past.len().saturating_sub(width)..];
    let most = recent.iter().copied().fold(0.0, f64::max);
    let latest = past.last().copied().unwrap_or_default();
    let title =
        format!("{} pps now {}, most {} in {} looks", name.text, si(latest), si(most), past.len());
    let data: Vec<u64> = recent.iter().map(|pps| pps.round() as u64).collect();
    let chart_widget = Sparkline::default()
        .block(Block::new().borders(Borders::ALL).title(title))
        .data(&data)
        .style(theme.of(Color::Cyan));
    frame.render_widget(chart_widget, chart);
    let mut text = Vec::new();
    match app.line(name) {
        Some(line) => {
            let Line { pps, bps, passed, dropped, .. } = line;
            text.push(Text::from(format!(
                "{} pps, {}bit/s, {passed} passed, {dropped} dropped, first {} ago, last {} ago",
                si(*pps),
                si(*bps),
                ago(line.first_seen, now),
                ago(line.last_seen, now)
            )));
        }
        // The page stays: a source that has fallen silent is what one may be waiting for.
        None => text.push(Text::from("It is not among the heaviest at present.")),
    }
    text.push(Text::default());
    match &app.shown {
        None => {}
        Some(Ok(lines)) => text.extend(lines.iter().map(|line| Text::from(line.clone()))),
        Some(Err(problem)) => text.push(Text::styled(problem.clone(), theme.bad())),
    }
    // `show` aligns its lines by spaces, which trimming would take away.
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), details);
}

fn help() -> Paragraph<'static> {
    let keys = [
        ("d p b k", "sort by packets dropped, packets/s, bits/s, packets"),
        ("/", "filter: a part of a line, or a prefix such as 192.0.2.0/24; esc removes it"),
        ("space", "stop, go on"),
        ("↑ ↓ …", "choose a line, also with page up and down, home and end"),
        ("enter", "what the line has sent while this runs, and `limiter show` of it"),
        ("q", "end"),
    ];
    let mut text: Vec<_> =
        keys.iter().map(|(key, what)| Text::from(format!("{key:8} {what}"))).collect();
    text.push(Text::default());
    text.push(Text::from(
        "! is over its limit. ERROR: what PASSED may be too low by, packets below the gate before \
         the source got its bucket. FIRST and LAST: how long ago.",
    ));
    Paragraph::new(text)
}
