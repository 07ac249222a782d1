//! A real browser without a window, driven over its debugging pipe: what a page shows, what it asks
//! for, and what it complains of.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    os::unix::process::CommandExt as _,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Namespace, process::Background};

/// How long the browser may take for an answer; other tests keep the machine busy.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A page in a browser that runs in a network namespace.
#[derive(Debug)]
pub struct Browser {
    process: Background,
    commands: File,
    messages: Receiver<Value>,
    session: Option<String>,
    next: u64,
    /// Addresses of everything that the page has asked for.
    pub requests: Vec<String>,
    /// Errors and warnings on its console, and exceptions.
    pub complaints: Vec<String>,
    _profile: TempDir,
}

/// A pipe whose ends are out of the way of the numbers that the browser expects.
fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors to the array.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert!(made == 0, "cannot make a pipe: {}", std::io::Error::last_os_error());
    let [read, write] = ends.map(|end| {
        // SAFETY: the descriptor was just made and is closed once, after it was duplicated.
        unsafe {
            let moved = libc::fcntl(end, libc::F_DUPFD_CLOEXEC, 10);
            libc::close(end);
            assert!(moved >= 10, "cannot duplicate a pipe");
            OwnedFd::from_raw_fd(moved)
        }
    });
    (read, write)
}

impl Browser {
    /// Starts a browser in `host` with an empty page.
    ///
    /// # Panics
    /// If there is none, or it does not answer.
    #[must_use]
    pub fn start(host: &Namespace) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let (commands_out, commands) = pipe();
        let (messages, messages_in) = pipe();
        let mut command = host.command(&tools::CHROMIUM);
        command
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
            ])
            .args(["--disable-sync", "--disable-default-apps", "--hide-scrollbars", "--mute-audio"])
            .args(["--ignore-certificate-errors", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let (take, give) = (commands_out.as_raw_fd(), messages_in.as_raw_fd());
        // SAFETY: dup2 is async-signal-safe, and both descriptors are open until after the fork.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(take, 3) == 3 && libc::dup2(give, 4) == 4 {
                    return Ok(());
                }
                Err(std::io::Error::last_os_error())
            })
        };
        let process = Background::start(&mut command);
        drop((commands_out, messages_in));
        let (to, from) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(File::from(messages));
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                if message.last() == Some(&0) {
                    message.pop();
                }
                let Ok(value) = serde_json::from_slice(&message) else { break };
                message.clear();
                if to.send(value).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            process,
            commands: commands.into(),
            messages: from,
            session: None,
            next: 1,
            requests: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let page = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Network", "Runtime", "Log", "Page"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Asks the browser something and waits for the answer.
    ///
    /// # Panics
    /// If it refuses, or does not answer.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.commands.write_all(&text).expect("the browser reads");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("the browser does not answer {method}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser is gone at {method}"),
            };
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    /// Keeps what an event tells of requests and errors.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            Some("Runtime.consoleAPICalled") => {
                if matches!(parameters["type"].as_str(), Some("error" | "warning" | "assert")) {
                    self.complaints.push(parameters["args"].to_string());
                }
            }
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") => {
                if matches!(parameters["entry"]["level"].as_str(), Some("error" | "warning")) {
                    self.complaints.push(parameters["entry"].to_string());
                }
            }
            _ => {}
        }
    }

    /// Opens a page and waits until it is loaded.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn open(&mut self, url: &str) {
        let answer = self.ask("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.wait("document.readyState === 'complete'", TIMEOUT);
    }

    /// What an expression of JavaScript gives in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text of the element that `selector` finds.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({})?.textContent", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true in the page. Returns how long that took.
    ///
    /// # Panics
    /// If it is not within `limit`.
    pub fn wait(&mut self, expression: &str, limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            if self.eval(&format!("Boolean({expression})")) == true {
                return start.elapsed();
            }
            assert!(start.elapsed() < limit, "waited {limit:?} in vain for {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the page a size in pixels, and dark or light colours.
    pub fn look(&mut self, width: u32, height: u32, dark: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Asserts that nothing but what scrolls by itself (`.wide`) is beyond the right edge of a page of so many pixels.
    ///
    /// # Panics
    /// If something is.
    pub fn assert_fits(&mut self, width: u32) {
        let wide = self.eval("document.documentElement.scrollWidth");
        let beyond = self.eval(&format!(
            "[...document.querySelectorAll('body *')].filter(it => !it.parentElement.closest('.wide') &&
               it.getBoundingClientRect().right > {width}).map(it => it.tagName + ' ' + it.textContent)"
        ));
        let fits = wide.as_u64().is_some_and(|wide| wide <= u64::from(width));
        assert!(fits, "{wide} of {width} pixels wide: {beyond}");
    }

    /// Asserts that the page is dark or light, and that what is written, in charts too, can be told from what it is
    /// written on.
    ///
    /// # Panics
    /// If not.
    pub fn assert_readable(&mut self, dark: bool) {
        let colours = self.eval(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
              getComputedStyle(document.querySelector('svg text')).fill]",
        );
        let light = |at: usize| brightness(colours[at].as_str().unwrap_or_default());
        assert_eq!(light(0) < 0.5, dark, "{colours}");
        let contrasts = [1, 2].map(|at| (light(0) - light(at)).abs());
        assert!(contrasts.iter().all(|it| *it > 0.6), "{colours}");
    }

    /// Asserts that the page at `url` has asked for nothing else, and has complained of nothing.
    ///
    /// # Panics
    /// If it has.
    pub fn assert_self_contained(&self, url: &str) {
        assert!(self.complaints.is_empty(), "{:#?}", self.complaints);
        let is_other = |asked: &&String| **asked != url && *asked != "about:blank";
        let others: Vec<_> = self.requests.iter().filter(is_other).collect();
        assert!(others.is_empty() && self.requests.iter().any(|it| it == url), "{others:#?}");
    }

    /// Keeps a picture of the whole page in a file.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn screenshot(&mut self, path: &Path) {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.ask("Page.captureScreenshot", parameters);
        let data = decode(picture["data"].as_str().unwrap_or_default());
        assert!(data.starts_with(b"\x89PNG"), "no picture");
        std::fs::write(path, data).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Presses and releases a key by its name, such as `Tab` or `Enter`.
    pub fn press(&mut self, key: &str) {
        let code = if key == "Tab" { 9 } else { 13 };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key});
            event["windowsVirtualKeyCode"] = code.into();
            if kind == "keyDown" && key == "Enter" {
                event["text"] = "\r".into();
            }
            self.ask("Input.dispatchKeyEvent", event);
        }
    }
}

/// How bright a colour as a browser writes it is, 0 to 1; -1 for something else.
fn brightness(colour: &str) -> f64 {
    let parts = colour.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')'));
    let parts: Vec<f64> = parts
        .into_iter()
        .flat_map(|it| it.split(','))
        .filter_map(|it| it.trim().parse().ok())
        .collect();
    match parts[..] {
        [red, green, blue] => (red + green + blue) / (3.0 * 255.0),
        _ => -1.0,
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // So that its own children end, too; whatever is left of it is killed.
        self.session = None;
        let close = format!("{}\0", json!({"id": self.next, "method": "Browser.close"}));
        if self.commands.write_all(close.as_bytes()).is_ok() {
            let deadline = Instant::now() + Duration::from_secs(3);
            while self.process.try_wait().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Decodes base64 as the browser writes it.
fn decode(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(u32::from(c - b'A')),
        b'a'..=b'z' => Some(u32::from(c - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(c - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")]
        {
            assert_eq!(decode(text), bytes.as_bytes());
        }
        assert_eq!(decode("/+8="), [0xff, 0xef]);
    }
}
