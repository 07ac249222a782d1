//! What `limiter top` shows and how it answers keys: no clock, no daemon and no terminal in here.

use std::net::IpAddr;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::filter::Filter;
use super::history::History;
use super::line::{Line, Name};
use api::error::Failure;
use api::{
    ClusterGroupsReport, ClusterTopReport, GroupsReport, Health, Print, StatusReport, TopReport,
    Unanswered,
};
use model::Distinct;
use model::traffic::{GroupBy, Sort, Totals, Weight};

/// Characters of a filter.
const MAX_FILTER_LEN: usize = 80;

/// Lines that are asked for, unless told otherwise, and as many when a filter chooses among them: it chooses here, so
/// that what it would find must be among them.
const LINES: usize = 100;
const FILTERED: usize = 1000;

/// What the terminal program has to do after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Draw,
    /// Ask for lines now: other ones are wanted.
    Ask,
    /// Ask about the source on the screen.
    Show,
    Quit,
}

/// What the daemon answers.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The heaviest sources.
    Sources(TopReport),
    /// The heaviest sources of all hosts.
    Fleet(ClusterTopReport),
    /// The heaviest groups.
    Groups(GroupsReport),
    /// The heaviest groups of all hosts.
    FleetGroups(ClusterGroupsReport),
}

/// What is on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Screen {
    /// The lines.
    #[default]
    List,
    /// One of them.
    One(Name),
    /// The keys.
    Help,
}

/// Everything that is on the screen.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) screen: Screen,
    pub(super) sort: Sort,
    pub(super) by: GroupBy,
    n: Option<usize>,
    pub(super) filter: Filter,
    /// The filter as it was typed.
    pub(super) filter_text: String,
    /// A filter that is being typed.
    pub(super) typing: Option<String>,
    pub(super) paused: bool,
    /// All lines of the last answer.
    lines: Vec<Line>,
    chosen: Option<Name>,
    pub(super) history: History,
    pub(super) totals: Option<Totals>,
    pub(super) distinct: Option<Distinct>,
    pub(super) tracked: Option<u64>,
    /// The daemon's health, with what it warns of first.
    pub(super) health: Option<(Health, Option<String>)>,
    /// How many hosts answered, and which did not, where all hosts are asked.
    pub(super) hosts: Option<(usize, Vec<String>)>,
    /// Why the last answer is not there.
    pub(super) trouble: Option<String>,
    /// Why the last key did nothing.
    pub(super) complaint: Option<String>,
    /// What `show` tells of the source on the screen, or why it does not.
    pub(super) shown: Option<Result<Vec<String>, String>>,
}

impl App {
    pub(super) fn new(sort: Sort, by: GroupBy, n: Option<usize>) -> Self {
        Self { sort, by, n, ..Self::default() }
    }

    /// How many lines to ask for.
    pub(super) fn wanted(&self) -> usize {
        self.n.unwrap_or(if self.filter == Filter::All { LINES } else { FILTERED })
    }

    /// The lines that the filter lets through.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| self.filter.matches(line))
    }

    /// How many lines there are, whatever the filter.
    pub(super) fn all(&self) -> usize {
        self.lines.len()
    }

    /// The place of the chosen line among those that are shown; the first one if it is gone.
    pub(super) fn place(&self) -> usize {
        // By name, as lines change places with every answer.
        let chosen = self.chosen.as_ref();
        self.lines().position(|line| Some(&line.name) == chosen).unwrap_or_default()
    }

    /// The line with a name.
    pub(super) fn line(&self, name: &Name) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == *name)
    }

    /// The source on the screen, about which `show` knows more.
    pub(super) fn source(&self) -> Option<IpAddr> {
        match &self.screen {
            // Of a prefix or a class the daemon shows nothing more. Of an IPv6 source, any address of its prefix will do.
            Screen::One(name) if matches!(self.by, GroupBy::Source | GroupBy::Destination) => {
                name.text.split('/').next()?.parse().ok()
            }
            _ => None,
        }
    }

    /// Takes what the daemon answers. Where it does not, the lines of the last answer stay.
    pub(super) fn answer(&mut self, answer: Result<Answer, Failure>) {
        let lines = match answer {
            Ok(Answer::Sources(report)) => {
                self.totals = report.totals;
                self.distinct = report.distinct;
                self.tracked = Some(report.tracked);
                report.sources.iter().map(Line::from).collect()
            }
            Ok(Answer::Fleet(report)) => {
                // Hosts count distinct sources by themselves, and a source at
                // two of them is one: a sum would be wrong.
                (self.totals, self.distinct) = (report.totals, None);
                self.tracked = Some(report.tracked);
                self.heard(report.hosts.len(), report.unanswered);
                report.sources.iter().map(|source| Line::from(&source.entry)).collect()
            }
            Ok(Answer::Groups(report)) => {
                self.tracked = Some(report.tracked);
                report.groups.iter().map(Line::from).collect()
            }
            Ok(Answer::FleetGroups(report)) => {
                self.tracked = Some(report.tracked);
                self.heard(report.hosts.len(), report.unanswered);
                report.groups.iter().map(|group| Line::from(&group.entry)).collect()
            }
            Err(failure) => {
                // The last lines stay: they are what there is to look at while a daemon starts
                // again.
                self.trouble = Some(failure.to_string());
                return;
            }
        };
        self.trouble = None;
        self.lines = lines;
        self.history.add(self.lines.iter().map(|line| (&line.name, line.pps)));
    }

    /// So many hosts have answered, and these have not.
    fn heard(&mut self, hosts: usize, missing: Vec<Unanswered>) {
        self.hosts = Some((hosts, missing.into_iter().map(|it| it.host).collect()));
    }

    /// Takes what the daemon says of itself.
    pub(super) fn status(&mut self, status: Result<StatusReport, Failure>) {
        // One warning alone: the header has one line for all that there is to say.
        self.health = status.ok().map(|status| (status.state, status.warnings.into_iter().next()));
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Then {
        self.complaint = None;
        // In raw mode Ctrl-C is a key and no signal.
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Then::Quit } else { Then::Draw };
        }
        if self.typing.is_some() {
            return self.type_filter(key.code);
        }
        match (&self.screen, key.code) {
            (_, KeyCode::Char('q')) => return Then::Quit,
            (Screen::List, KeyCode::Char('?') | KeyCode::F(1)) => self.screen = Screen::Help,
            (Screen::List, KeyCode::Esc) if self.filter != Filter::All => {
                self.filter_text.clear();
                self.filter = Filter::All;
                return Then::Ask;
            }
            (Screen::List, code) => return self.list_key(code),
            (Screen::Help, _) | (Screen::One(_), KeyCode::Esc | KeyCode::Backspace) => {
                self.screen = Screen::List;
            }
            (Screen::One(_), KeyCode::Char(' ')) => return self.pause(),
            _ => {}
        }
        Then::Draw
    }

    fn pause(&mut self) -> Then {
        self.paused = !self.paused;
        if self.paused { Then::Draw } else { Then::Ask }
    }

    fn list_key(&mut self, code: KeyCode) -> Then {
        let sort = match code {
            KeyCode::Char('d') => Sort::Dropped,
            KeyCode::Char('p') => Sort::Pps,
            KeyCode::Char('b') => Sort::Bits,
            KeyCode::Char('k') => Sort::Packets,
            KeyCode::Char(' ') => return self.pause(),
            KeyCode::Char('/') => {
                self.typing = Some(self.filter_text.clone());
                return Then::Draw;
            }
            KeyCode::Enter => return self.open(),
            KeyCode::Up => return self.choose(|place, _| place.saturating_sub(1)),
            KeyCode::Down => return self.choose(|place, _| place + 1),
            KeyCode::PageUp => return self.choose(|place, _| place.saturating_sub(10)),
            KeyCode::PageDown => return self.choose(|place, _| place + 10),
            KeyCode::Home => return self.choose(|_, _| 0),
            KeyCode::End => return self.choose(|_, last| last),
            _ => return Then::Draw,
        };
        self.sort = sort;
        // At once: the answer in the new order takes a while, and does not come while the screen is stopped.
        self.sort_lines();
        Then::Ask
    }

    /// Puts the lines in order, until others come.
    fn sort_lines(&mut self) {
        let sort = self.sort;
        let weight = |line: &Line| {
            let packets = (line.passed + line.dropped) as f64;
            let sorted_by = match sort {
                Sort::Dropped => line.dropped as f64,
                Sort::Pps => line.pps,
                Sort::Bits | Sort::Bytes => line.bps,
                Sort::Packets => packets,
            };
            Weight::new(sorted_by, line.pps, packets)
        };
        // By the daemon's own rule for ties, or lines would jump when its answer comes.
        self.lines.sort_by(|a, b| weight(a).heavier_first(&weight(b)));
    }

    fn choose(&mut self, to: impl FnOnce(usize, usize) -> usize) -> Then {
        let last = self.lines().count().saturating_sub(1);
        let place = to(self.place(), last).min(last);
        let chosen = self.lines().nth(place).map(|line| line.name.clone());
        self.chosen = chosen;
        Then::Draw
    }

    fn open(&mut self) -> Then {
        let Some(name) = self.lines().nth(self.place()).map(|line| line.name.clone()) else {
            self.complaint = Some("there is no line to look at".into());
            return Then::Draw;
        };
        self.chosen = Some(name.clone());
        self.screen = Screen::One(name);
        // What was told of another source would stand under this one's name until the answer comes.
        self.shown = None;
        Then::Show
    }

    fn type_filter(&mut self, code: KeyCode) -> Then {
        let Some(typed) = &mut self.typing else { return Then::Draw };
        match code {
            KeyCode::Char(character) if typed.chars().count() < MAX_FILTER_LEN => {
                typed.push(character);
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Esc => self.typing = None,
            KeyCode::Enter => match Filter::parse(typed) {
                Ok(filter) => {
                    self.filter = filter;
                    typed.trim().clone_into(&mut self.filter_text);
                    self.typing = None;
                    return Then::Ask;
                }
                // What was typed stays, to be mended.
                Err(problem) => self.complaint = Some(problem),
            },
            _ => {}
        }
        Then::Draw
    }
}

/// What the daemon says of a source, in lines, or why it does not.
pub(super) fn printed<R: Print>(report: Result<R, Failure>) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let report = report.map_err(|failure| failure.to_string())?;
    report.print(&mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&out).lines().map(str::to_owned).collect())
}
