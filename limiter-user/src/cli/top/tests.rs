use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::app::{Answer, App, Screen, Then, printed};
use super::filter::Filter;
use super::view::{self, Theme};
use api::error::{Failure, exit};
use api::{GroupsReport, SourceReport, TopReport};
use model::traffic::{GroupBy, Sort};

/// The present of all screens: 1000 s after 1970.
const NOW: Duration = Duration::from_secs(1000);

fn entry(source: &str, state: &str, pps: f64, passed: u64, dropped: u64) -> Value {
    json!({
        "source": source, "state": state, "limit": null, "passed": passed, "dropped": dropped,
        "bytes": 64 * (passed + dropped), "uncounted": 30, "pps": pps, "bps": 512.0 * pps,
        "pps_seconds": 1.0, "first_seen": "1970-01-01T00:15:00.000Z",
        "last_seen": "1970-01-01T00:16:39.500Z",
    })
}

fn report(sources: &[Value]) -> TopReport {
    serde_json::from_value(json!({
        "sources": sources, "tracked": 12345, "age_seconds": 0.1,
        "totals": {"passed_pps": 1500.0, "dropped_pps": 2_500_000.0, "passed_bps": 768_000.0,
                   "dropped_bps": 1.28e9, "seconds": 1.0},
        "distinct": {"sources": 54321.0, "standard_error": 0.01625, "window_s": 1.0},
    }))
    .unwrap()
}

fn sources() -> TopReport {
    report(&[
        entry("198.51.100.7/32", "limited", 2_400_000.0, 900, 48_000_000),
        entry("2001:db8:0:5::/64", "limited", 99_000.0, 500, 1_000_000),
        entry("203.0.113.9/32", "conforming", 800.0, 16_000, 0),
    ])
}

fn app() -> App {
    let mut app = App::new(Sort::Dropped, GroupBy::Source, None);
    app.answer(Ok(Answer::Sources(sources())));
    app
}

fn press(app: &mut App, code: KeyCode) -> Then {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(app: &mut App, text: &str) -> Then {
    let mut then = Then::Draw;
    for character in text.chars() {
        let code = if character == '\n' { KeyCode::Enter } else { KeyCode::Char(character) };
        then = press(app, code);
    }
    then
}

fn terminal(app: &App, width: u16, height: u16, colour: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = SystemTime::UNIX_EPOCH + NOW;
    terminal.draw(|frame| view::draw(frame, app, now, Theme::new(colour))).unwrap();
    terminal
}

/// The screen as text, without spaces at ends of lines.
fn screen(app: &App, width: u16, height: u16) -> String {
    let terminal = terminal(app, width, height, true);
    let buffer = terminal.backend().buffer();
    let rows = (0..height).map(|y| {
        let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        row.trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_wide_terminal_shows_everything() {
    let wanted = "\
limiter top
passed 1.50k pps 768kbit/s  dropped 2.50M pps 1.28Gbit/s
tracked 12345  by source, most dropped first  54321 ± 883 distinct sources in 1.00 s
  SOURCE                      STATE      LIMIT             PPS BITS/S     PASSED  ERROR    DROPPED FIRST  LAST
>!198.51.100.7                limited    none            2.40M  1.23G        900    +30   48000000    1m    0s
 !2001:db8:0:5::/64           limited    none            99.0k  50.7M        500    +30    1000000    1m    0s
  203.0.113.9                 conforming none              800   410k      16000    +30          0    1m    0s

d dropped  p pps  b bits  k packets  / filter  space pause  enter look  ? help  q quit";
    assert_eq!(screen(&app(), 110, 9), wanted);
}

#[test]
fn forty_columns_keep_what_matters_most() {
    let wanted = "\
limiter top
passed 1.50k pps 768kbit/s  dropped 2.50
tracked 12345  by source, most dropped f
  SOURCE                  PPS    DROPPED
>!198.51.100.7          2.40M   48000000
 !2001:db8:0:5::/64     99.0k    1000000
  203.0.113.9             800          0
d dropped  p pps  b bits  k packets  / f";
    assert_eq!(screen(&app(), 40, 8), wanted);
}

#[test]
fn keys_sort() {
    for (key, sort, first) in [
        ('p', Sort::Pps, "198.51.100.7"),
        ('b', Sort::Bits, "198.51.100.7"),
        ('k', Sort::Packets, "198.51.100.7"),
        ('d', Sort::Dropped, "198.51.100.7"),
    ] {
        let mut app = app();
        app.sort = Sort::Bytes;
        assert_eq!(press(&mut app, KeyCode::Char(key)), Then::Ask);
        assert_eq!(app.sort, sort);
        assert_eq!(app.lines().next().unwrap().name.text, first);
        assert!(screen(&app, 100, 9).contains(&format!("most {} first", sort.name())));
    }
    // What is there has the new order at once.
    let mut app = App::new(Sort::Dropped, GroupBy::Source, None);
    app.answer(Ok(Answer::Sources(report(&[
        entry("192.0.2.1/32", "limited", 1.0, 0, 50),
        entry("192.0.2.2/32", "conforming", 70.0, 90, 0),
    ]))));
    press(&mut app, KeyCode::Char('p'));
    assert_eq!(app.lines().next().unwrap().name.text, "192.0.2.2");
}

#[test]
fn a_fleet_is_shown_as_one_host_and_who_is_missing_is_named() {
    let mut heaviest = entry("198.51.100.7/32", "limited", 2_400_000.0, 900, 48_000_000);
    heaviest["hosts"] = 2.into();
    heaviest["limit_differs"] = true.into();
    let report = json!({
        "sources": [heaviest], "hosts": ["edge-1", "edge-2"], "exact": true, "tracked": 5,
        "unanswered": [{"host": "edge-3", "problem": "it does not answer"}],
        "unlisted_at_most": 0.0, "totals": null, "took_seconds": 0.1,
    });
    let mut app = App::new(Sort::Dropped, GroupBy::Source, None);
    app.answer(Ok(Answer::Fleet(serde_json::from_value(report).unwrap())));
    let shown = screen(&app, 120, 9);
    assert!(shown.starts_with("limiter top  2 of 3 hosts  without edge-3"), "{shown}");
    assert!(shown.contains("198.51.100.7"), "{shown}");
    let report = json!({
        "by": "prefix", "hosts": ["edge-1"], "exact": true, "tracked": 5, "known": 1,
        "unanswered": [{"host": "edge-2", "problem": "it does not answer"}],
        "unlisted_at_most": 0.0, "took_seconds": 0.1,
        "groups": [{
            "group": "198.51.100.0/24", "sources": 3, "limited": 1, "passed": 9, "dropped": 4,
            "bytes": 900, "pps": 7.0, "bps": 70.0, "first_seen": null, "last_seen": null, "hosts": 1,
        }],
    });
    let mut app = App::new(Sort::Dropped, GroupBy::Prefix, None);
    app.answer(Ok(Answer::FleetGroups(serde_json::from_value(report).unwrap())));
    let shown = screen(&app, 120, 9);
    assert!(shown.starts_with("limiter top  1 of 2 hosts  without edge-2"), "{shown}");
    assert!(shown.contains("198.51.100.0/24"), "{shown}");
}

#[test]
fn a_filter_chooses_and_says_when_it_matches_nothing() {
    let mut app = app();
    press(&mut app, KeyCode::Char('/'));
    type_text(&mut app, "LIMq");
    press(&mut app, KeyCode::Backspace);
    assert!(screen(&app, 80, 9).ends_with("filter: LIM_"));
    assert_eq!(press(&mut app, KeyCode::Enter), Then::Ask);
    assert_eq!((app.lines().count(), app.wanted()), (2, 1000));
    let filters = [
        ("198.51.0.0/16", 1),
        ("2001:db8::/32", 1),
        ("2001:0DB8:0:5:0::1", 1),
        ("203.0.113.9/32", 1),
        ("198.51.100.7", 1),
        ("conform", 1),
        ("10.0.0.0/8", 0),
    ];
    for (text, count) in filters {
        app.filter = Filter::parse(text).unwrap();
        assert_eq!(app.lines().count(), count, "{text}");
    }
    press(&mut app, KeyCode::Char('/'));
    (0..3).for_each(|_| {
        press(&mut app, KeyCode::Backspace);
    });
    type_text(&mut app, "10.0.0.0/8\n");
    let text = screen(&app, 80, 9);
    assert!(text.contains("The filter 10.0.0.0/8 matches none of the 3 heaviest."), "{text}");
    assert_eq!(press(&mut app, KeyCode::Enter), Then::Draw);
    assert!(screen(&app, 80, 9).contains("no line to look at"));
    // A prefix that is none is told and can be mended.
    press(&mut app, KeyCode::Char('/'));
    type_text(&mut app, "0\n");
    let text = screen(&app, 100, 9);
    assert!(text.contains("\"10.0.0.0/80\" is not a prefix"), "{text}");
    assert_eq!(app.filter, Filter::parse("10.0.0.0/8").unwrap());
    assert!(screen(&app, 80, 9).contains("is not a prefix"));
    press(&mut app, KeyCode::Esc);
    assert_eq!(press(&mut app, KeyCode::Esc), Then::Ask);
    assert_eq!((&app.filter, app.lines().count()), (&Filter::All, 3));
}

#[test]
fn a_pause_and_the_end() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Char(' ')), Then::Draw);
    assert!(app.paused && screen(&app, 80, 9).contains("PAUSED"));
    assert_eq!(press(&mut app, KeyCode::Char(' ')), Then::Ask);
    assert!(!app.paused);
    let name = app.lines().next().unwrap().name.clone();
    for screen in [Screen::List, Screen::Help, Screen::One(name)] {
        app.screen = screen;
        assert_eq!(press(&mut app, KeyCode::Char('q')), Then::Quit);
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    app.screen = Screen::List;
    press(&mut app, KeyCode::Char('/'));
    assert_eq!(type_text(&mut app, "q"), Then::Draw);
    assert_eq!(app.key(interrupt), Then::Quit);
}

#[test]
fn a_line_is_chosen_and_stays_chosen() {
    let mut app = app();
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    assert_eq!(app.place(), 2);
    // It has another place at the next look.
    app.answer(Ok(Answer::Sources(report(&[
        entry("203.0.113.9/32", "limited", 9.0, 1, 99),
        entry("198.51.100.7/32", "limited", 1.0, 1, 9),
    ]))));
    assert_eq!(app.place(), 0);
    press(&mut app, KeyCode::End);
    assert_eq!(app.place(), 1);
    press(&mut app, KeyCode::Up);
    press(&mut app, KeyCode::Up);
    assert_eq!(app.place(), 0);
}

#[test]
fn a_source_is_looked_at() {
    let mut app = app();
    press(&mut app, KeyCode::Down);
    assert_eq!(press(&mut app, KeyCode::Enter), Then::Show);
    assert_eq!(app.source(), Some("2001:db8:0:5::".parse().unwrap()));
    app.answer(Ok(Answer::Sources(sources())));
    app.shown = Some(printed(
        serde_json::from_value::<SourceReport>(json!({
            "source": "2001:db8:0:5::/64", "tracked": true, "state": "limited", "limit": null,
            "management": null, "tokens": null, "estimate": 3, "passed": 500, "dropped": 1_000_000,
            "bytes": 64_000_000, "first_seen": null, "last_seen": null,
        }))
        .map_err(|error| Failure::new(exit::NEGATIVE, error.to_string())),
    ));
    let text = screen(&app, 80, 24);
    for part in [
        "2001:db8:0:5::/64 pps now 99.0k, most 99.0k in 2 looks",
        "██",
        "99.0k pps, 50.7Mbit/s, 500 passed, 1000000 dropped",
        "dropped    1000000 packets",
        "esc back",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // It goes on when the source is not listed any more, and when the daemon knows nothing of it.
    app.answer(Ok(Answer::Sources(report(&[]))));
    app.shown =
        Some(printed::<SourceReport>(Err(Failure::new(exit::UNREACHABLE, "no daemon answers"))));
    let text = screen(&app, 80, 24);
    assert!(text.contains("not among the heaviest") && text.contains("no daemon"), "{text}");
    press(&mut app, KeyCode::Esc);
    assert_eq!((&app.screen, app.source()), (&Screen::List, None));
    assert!(screen(&app, 80, 9).contains("No source sends enough to be listed"));
}

#[test]
fn a_daemon_that_is_gone_is_told_and_the_lines_stay() {
    let mut app = app();
    app.answer(Err(Failure::new(exit::UNREACHABLE, "no daemon answers on /run/x")));
    let text = screen(&app, 100, 9);
    assert!(text.contains("NO ANSWER, trying again: no daemon answers on /run/x"), "{text}");
    assert!(text.contains("198.51.100.7"), "{text}");
    app.answer(Ok(Answer::Sources(sources())));
    assert!(!screen(&app, 100, 9).contains("NO ANSWER"));
}

#[test]
fn groups_are_lines_too() {
    for (by, group) in [(GroupBy::Prefix, "192.0.2.0/24"), (GroupBy::Class, "udp:53")] {
        let report: GroupsReport = serde_json::from_value(json!({
            "by": by, "known": 1, "tracked": 300, "groups": [{
                "group": group, "sources": 254, "limited": 250, "passed": 7, "dropped": 8,
                "bytes": 9, "pps": 10.0, "bps": 11.0, "first_seen": null, "last_seen": null,
            }],
        }))
        .unwrap();
        let mut app = App::new(Sort::Dropped, by, None);
        app.answer(Ok(Answer::Groups(report)));
        let text = screen(&app, 100, 9);
        for part in [group, "SOURCES", "254", "250 limited", &by.name().to_uppercase()] {
            assert!(text.contains(part), "{part}: {text}");
        }
        press(&mut app, KeyCode::Enter);
        assert_eq!(app.source(), None);
        assert!(screen(&app, 100, 20).contains("7 passed, 8 dropped"));
    }
}

#[test]
fn without_colours_nothing_is_coloured() {
    let mut app = app();
    app.answer(Err(Failure::new(exit::UNREACHABLE, "gone")));
    for (colour, wanted) in [(true, true), (false, false)] {
        let terminal = terminal(&app, 100, 12, colour);
        let coloured = terminal.backend().buffer().content().iter().any(|c| c.fg != Color::Reset);
        assert_eq!(coloured, wanted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_key_and_no_size_panics(
        keys in prop::collection::vec(0usize..24, 0..40),
        width in 1u16..130,
        height in 1u16..40,
        full in any::<bool>(),
    ) {
        const KEYS: [KeyCode; 24] = [
            KeyCode::Up, KeyCode::Down, KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home,
            KeyCode::End, KeyCode::Enter, KeyCode::Esc, KeyCode::Backspace, KeyCode::Tab,
            KeyCode::Char('/'), KeyCode::Char('d'), KeyCode::Char('p'), KeyCode::Char('b'),
            KeyCode::Char('k'), KeyCode::Char(' '), KeyCode::Char('?'), KeyCode::Char('1'),
            KeyCode::Char('.'), KeyCode::Char(':'), KeyCode::Char('ü'), KeyCode::Delete,
            KeyCode::Null, KeyCode::F(1),
        ];
        let mut app = if full { app() } else { App::new(Sort::Pps, GroupBy::Source, None) };
        for key in keys {
            press(&mut app, KEYS[key]);
            terminal(&app, width, height, true);
            prop_assert!(app.place() < app.lines().count().max(1));
        }
    }
}
