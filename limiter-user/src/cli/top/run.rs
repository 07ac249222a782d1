//! The terminal, the keys and the daemon of `limiter top`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event as TerminalEvent, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

use super::app::{Answer, App, Then, printed};
use super::view::{self, Theme};
use super::{groups, sources};
use crate::cli::args::TopArgs;
use api::client::Client;
use api::error::{Failure, exit};
use api::{ClusterSourceReport, SourceReport, StatusReport};
use model::traffic::GroupBy;

/// Between two questions about the heaviest.
// As often as the daemon makes a list for all who watch: asking more often would bring the same one.
const SECOND: Duration = Duration::from_secs(1);

/// Between two questions about the daemon's health: each makes it look at the whole table.
const HEALTH_INTERVAL: Duration = Duration::from_secs(10);

/// How often the reader of keys sees whether it is still wanted.
// Short, as the end of the program waits for it.
const KEYS_TIMEOUT: Duration = Duration::from_millis(100);

/// Sums over all sources take the daemon long: they are asked for so rarely that they take a fiftieth of the time at
/// the most.
const PAUSE_FACTOR: u32 = 50;

enum Event {
    Key(event::KeyEvent),
    Resized,
    /// The terminal is gone.
    Gone(io::Error),
    /// An answer to the question with this number, and how long it took.
    Answered(u64, Result<Answer, Failure>, Duration),
    Shown(Result<Vec<String>, String>),
    Status(Result<Box<StatusReport>, Failure>),
}

/// The terminal, as it was before once this is dropped; the hook that `try_init` sets sees to panics.
struct Screen(DefaultTerminal);

impl Screen {
    fn new() -> Result<Self, Failure> {
        ratatui::try_init().map(Self).map_err(|error| {
            ratatui::restore();
            lost(error)
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::new(exit::NEGATIVE, format!("cannot use the terminal: {error}"))
        .hint("`limiter top --once` prints a list without one")
}

/// Reads keys until nobody wants any, in a thread: tokio's own standard input would keep one in a read that nothing ends.
struct Keys {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Keys {
    fn read(to: Sender<Event>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let read = move || {
            // Polled, as nothing ends a read that waits for a key.
            while !stopped.load(Ordering::Relaxed) {
                let happened = match event::poll(KEYS_TIMEOUT) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let event = match happened {
                    // Some terminals tell the release of a key too, which would act twice.
                    Ok(TerminalEvent::Key(key)) if key.kind != KeyEventKind::Release => {
                        Event::Key(key)
                    }
                    Ok(TerminalEvent::Resize(..)) => Event::Resized,
                    Ok(_) => continue,
                    Err(error) => {
                        let _ = to.blocking_send(Event::Gone(error));
                        return;
                    }
                };
                if to.blocking_send(event).is_err() {
                    return;
                }
            }
        };
        Self { stop, thread: Some(thread::spawn(read)) }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What is typed after the end is for the shell, not for a thread that still reads.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Questions to the daemon, answered through a channel.
struct Questions {
    client: Client,
    to: Sender<Event>,
    /// The number of the latest question about the heaviest, and whether it is open.
    asked: u64,
    open: bool,
    showing: bool,
    /// Whether all hosts of the cluster are asked.
    cluster: bool,
}

impl Questions {
    fn heaviest(&mut self, app: &App) {
        // A number of its own: an answer to the former sort may still
        // be on its way, and must not take the place of this one.
        (self.asked, self.open) = (self.asked + 1, true);
        let (client, to, number) = (self.client.clone(), self.to.clone(), self.asked);
        let (by, n, sort, cluster) = (app.by, app.wanted(), app.sort, self.cluster);
        let path = match by {
            GroupBy::Source | GroupBy::Destination => sources(by, n, sort, true, cluster),
            _ => groups(by, n, sort, cluster),
        };
        // Beside the loop, which goes on with keys meanwhile.
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = match (by, cluster) {
                (GroupBy::Source, true) => client.get(&path).await.map(Answer::Fleet),
                (GroupBy::Source | GroupBy::Destination, false) => {
                    client.get(&path).await.map(Answer::Sources)
                }
                (_, true) => client.get(&path).await.map(Answer::FleetGroups),
                (_, false) => client.get(&path).await.map(Answer::Groups),
            };
            // An error means that the program ends.
            let _ = to.send(Event::Answered(number, answer, start.elapsed())).await;
        });
    }

    fn show(&mut self, app: &App) {
        let Some(source) = app.source().filter(|_| !self.showing) else { return };
        // One at a time, as a slow answer must not make a queue.
        self.showing = true;
        let (client, to, cluster) = (self.client.clone(), self.to.clone(), self.cluster);
        tokio::spawn(async move {
            let shown = if cluster {
                let path = format!("/v1/cluster/sources/{source}");
                printed(client.get::<ClusterSourceReport>(&path).await)
            } else {
                printed(client.get::<SourceReport>(&format!("/v1/sources/{source}")).await)
            };
            let _ = to.send(Event::Shown(shown)).await;
        });
    }

    fn health(&self) {
        let (client, to) = (self.client.clone(), self.to.clone());
        tokio::spawn(async move {
            let _ = to.send(Event::Status(client.get("/v1/status").await.map(Box::new))).await;
        });
    }
}

/// How long to wait before the next question, after an answer that took some time.
fn pause(answer: &Result<Answer, Failure>, took: Duration) -> Duration {
    match answer {
        // The daemon looks once a second, or every few seconds: just after that.
        Ok(Answer::Sources(report)) => {
            let age = Duration::try_from_secs_f64(report.age_seconds.fract()).unwrap_or_default();
            let margin = Duration::from_millis(30);
            (SECOND + margin).saturating_sub(age).clamp(Duration::from_millis(200), SECOND + margin)
        }
        Ok(Answer::Fleet(report)) => {
            let took = Duration::try_from_secs_f64(report.took_seconds).unwrap_or_default();
            SECOND.saturating_sub(took).max(SECOND / 5)
        }
        Ok(Answer::Groups(_) | Answer::FleetGroups(_)) => {
            // Groups go through the whole table, however few are shown: the pause bounds what that
            // costs the daemon.
            (took * PAUSE_FACTOR).clamp(SECOND, 30 * SECOND)
        }
        // A daemon that restarts is found again within a second, and not asked in a loop.
        Err(_) => SECOND,
    }
}

/// Shows the heaviest until the user has seen enough.
pub(super) async fn watch(client: &Client, arguments: &TopArgs) -> Result<u8, Failure> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut app = App::new(arguments.sort, arguments.by, arguments.n);
    // Bounded: who pastes text waits for the screen, which has not to keep it all.
    let (to, mut events) = channel(64);
    let mut screen = Screen::new()?;
    // After the screen, so that it is dropped before: nobody else may read keys when the terminal
    // is the shell's again.
    let _keys = Keys::read(to.clone());
    // Their default action would leave the terminal in raw mode.
    let mut terminate = signal(SignalKind::terminate()).map_err(lost)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(lost)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(lost)?;
    let mut questions = Questions {
        client: client.clone(),
        to,
        asked: 0,
        open: false,
        showing: false,
        cluster: arguments.cluster,
    };
    questions.heaviest(&app);
    let (mut next, mut health) = (Instant::now() + SECOND, Instant::now());
    loop {
        let draw = |frame: &mut ratatui::Frame<'_>| {
            view::draw(frame, &app, SystemTime::now(), Theme::new(colour));
        };
        screen.0.draw(draw).map_err(lost)?;
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { return Ok(exit::OK) };
                if handle(event, &mut app, &mut questions, &mut events, &mut next)? {
                    return Ok(exit::OK);
                }
            }
            // One question at a time: a daemon under load gets no queue of them.
            () = sleep_until(next), if !questions.open && !app.paused => {
                questions.heaviest(&app);
                questions.show(&app);
            }
            () = sleep_until(health) => {
                health = Instant::now() + HEALTH_INTERVAL;
                questions.health();
            }
            _ = terminate.recv() => return Ok(exit::OK),
            _ = hangup.recv() => return Ok(exit::OK),
            _ = interrupt.recv() => return Ok(exit::OK),
        }
    }
}

/// Takes an event, and all that have come meanwhile: keys held down come faster than a slow terminal draws. Whether it
/// is the end.
fn handle(
    event: Event,
    app: &mut App,
    questions: &mut Questions,
    events: &mut Receiver<Event>,
    next: &mut Instant,
) -> Result<bool, Failure> {
    let mut event = Some(event);
    while let Some(present) = event {
        match present {
            Event::Key(key) => match app.key(key) {
                Then::Quit => return Ok(true),
                Then::Ask if !app.paused => questions.heaviest(app),
                Then::Show => questions.show(app),
                Then::Ask | Then::Draw => {}
            },
            Event::Resized => {}
            Event::Gone(error) => return Err(lost(error)),
            // Of an older question, which was about something else.
            Event::Answered(number, ..) if number != questions.asked => {}
            Event::Answered(_, answer, took) => {
                questions.open = false;
                *next = Instant::now() + pause(&answer, took);
                // It came too late to be shown.
                if !app.paused {
                    let is_back = app.trouble.is_some() && answer.is_ok();
                    app.answer(answer);
                    // It may be another daemon: its health is not awaited for seconds.
                    if is_back {
                        questions.health();
                    }
                }
            }
            Event::Shown(shown) => {
                questions.showing = false;
                app.shown = Some(shown);
            }
            Event::Status(status) => app.status(status.map(|status| *status)),
        }
        event = events.try_recv().ok();
    }
    Ok(false)
}
