//! A terminal with a screen that tests can read: what a user sees and types.

use std::{
    io::{Read as _, Write},
    num::NonZero,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::{cli::limiter_binary, process::wait_for};

/// How long something may take to be on the screen.
const TIMEOUT: Duration = Duration::from_secs(20);

fn some(length: u16) -> NonZero<u16> {
    NonZero::new(length).expect("a screen has rows and columns")
}

/// A client of a daemon in a terminal of its own.
pub struct Screen {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    parser: Arc<Mutex<vt100::Parser>>,
}

fn size(rows: u16, columns: u16) -> PtySize {
    PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 }
}

impl Screen {
    /// Starts `limiter --socket SOCKET ARGUMENTS` in a terminal of so many rows and columns.
    ///
    /// # Panics
    /// If there is no terminal to be had.
    #[must_use]
    pub fn start(socket: &Path, arguments: &[&str], rows: u16, columns: u16) -> Self {
        let pair = native_pty_system().openpty(size(rows, columns)).expect("a terminal");
        let mut command = CommandBuilder::new(limiter_binary());
        command.arg("--socket");
        command.arg(socket);
        command.args(arguments);
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        let child = pair.slave.spawn_command(command).expect("the client starts");
        let keys = pair.master.take_writer().expect("a keyboard");
        let mut reader = pair.master.try_clone_reader().expect("a screen");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let screen = Arc::clone(&parser);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends, with an error, when nobody has the terminal open any more.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                lock(&screen).process(&buffer[..length]);
            }
        });
        Self { master: pair.master, keys, child, parser }
    }

    /// What is on the screen, line by line.
    #[must_use]
    pub fn text(&self) -> String {
        lock(&self.parser).screen().contents()
    }

    /// Waits until `wanted` holds for the text on the screen, and returns that.
    ///
    /// # Panics
    /// If it does not within some seconds.
    pub fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let text = Mutex::new(String::new());
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, TIMEOUT, || {
                *lock(&text) = self.text();
                wanted(&lock(&text)).then_some(())
            });
        }));
        let text = lock(&text).clone();
        assert!(found.is_ok(), "no {what} on the screen:\n{text}");
        text
    }

    /// Types keys.
    ///
    /// # Panics
    /// If nobody takes them.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("somebody reads keys");
        self.keys.flush().expect("somebody reads keys");
    }

    /// Gives the terminal another size.
    ///
    /// # Panics
    /// If it cannot have it.
    pub fn resize(&self, rows: u16, columns: u16) {
        lock(&self.parser).screen_mut().set_size(some(rows), some(columns));
        self.master.resize(size(rows, columns)).expect("another size");
    }

    /// The client's process.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.process_id().expect("a process").cast_signed()
    }

    /// Waits for the client to end. Returns its exit code.
    ///
    /// # Panics
    /// If it goes on.
    pub fn ended(&mut self) -> u32 {
        let child = &mut self.child;
        let ended = wait_for("the client's end", TIMEOUT, || child.try_wait().expect("a child"));
        // What it wrote last is on its way.
        thread::sleep(Duration::from_millis(100));
        ended.exit_code()
    }

    /// Whether the terminal is as a shell needs it: the usual screen, a cursor, lines and echo.
    ///
    /// # Panics
    /// If its modes cannot be read.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        let parser = lock(&self.parser);
        let screen = parser.screen();
        let descriptor = self.master.as_raw_fd().expect("a descriptor");
        // SAFETY: all zeros are a valid `termios`.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and `modes` lives for the length of the call.
        let read = unsafe { libc::tcgetattr(descriptor, &raw mut modes) };
        assert_eq!(read, 0, "the terminal's modes");
        let lines = modes.c_lflag & (libc::ICANON | libc::ECHO) == libc::ICANON | libc::ECHO;
        lines && !screen.alternate_screen() && !screen.hide_cursor()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
