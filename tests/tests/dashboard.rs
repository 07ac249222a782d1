//! The dashboard in a real browser: what it shows of a flood and of changes, by mouse and by keyboard,
//! in all sizes and colours, and that it asks nobody else for anything.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use tests::{Browser, Daemon, DaemonOptions, Lab, Sender, Stream, frame, hosts::Hosts, v4};

const URL: &str = "http://127.0.0.1:9090/";
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where pictures are kept.
fn pictures() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let folder = own.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = folder.and_then(|folder| folder.parent()).expect("the target directory");
    let folder = folder.join("dashboard");
    fs::create_dir_all(&folder).expect("a folder for pictures");
    folder
}

fn source(last: u8) -> String {
    v4(last).to_string()
}

/// Whether a table has a row that begins with `text`.
fn has_row(table: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('#{table} tbody th')].some(cell => cell.textContent === '{text}')"
    )
}

/// A page with the dashboard that has got its first report.
fn open(lab: &Lab) -> Browser {
    let mut browser = Browser::start(&lab.receiver);
    browser.look(1600, 1000, false);
    browser.open(URL);
    browser.wait("document.getElementById('connection').textContent === 'Live'", TIMEOUT);
    browser
}

#[track_caller]
fn assert_clean(browser: &Browser) {
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    assert!(browser.requests.len() > 8, "{:#?}", browser.requests);
    let foreign: Vec<_> = browser
        .requests
        .iter()
        .filter(|url| !url.starts_with(URL) && *url != "about:blank")
        .collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
}

#[test]
fn a_flood_and_changes_show_in_the_page() {
    let lab = Lab::new(1);
    let daemon =
        Daemon::start_with(&lab, DaemonOptions::with(&["--http-listen", "127.0.0.1:9090"]));
    let cli = daemon.cli();
    cli.limit("1000pps", Some("100"), None);
    let mut browser = open(&lab);
    assert!(browser.text("#verdict-text").starts_with("Nothing is dropped"));
    assert_eq!(
        browser.eval("typeof uPlot"),
        "function",
        "built without charts: `cargo xtask build`"
    );

    // One source floods, another keeps to its limit.
    let begin = Instant::now();
    let sending = Sender::new(&lab).start(vec![
        Stream::new(frame::udp(v4(66), 100), 10_000.0, 400_000),
        Stream::new(frame::udp(v4(10), 100), 500.0, 20_000),
    ]);
    browser.wait(&has_row("offenders", &source(66)), TIMEOUT);
    let shown = begin.elapsed();
    println!("a flood shows after {} ms", shown.as_millis());
    assert!(shown < Duration::from_secs(2), "{shown:?}");
    browser.wait("document.getElementById('verdict').dataset.level === 'limiting'", TIMEOUT);
    browser
        .wait("document.getElementById('verdict-text').textContent.includes('those of')", TIMEOUT);
    let verdict = browser.text("#verdict-text");
    println!("{verdict}");
    assert!(verdict.starts_with("1 source over its limit; "), "{verdict}");
    assert!(
        verdict.contains(&format!("% of dropped packets are those of {}", source(66))),
        "{verdict}"
    );
    assert!(verdict.contains("0 conforming packets dropped"), "{verdict}");
    // Nine of ten packets are dropped, as the page tells.
    browser.wait("/k ?pps/.test(document.getElementById('dropped').textContent)", TIMEOUT);

    // Whatever is set elsewhere shows, too.
    for (change, table) in [
        (&["limit", "set", "2000pps", "--for", "198.51.100.0/24"][..], "limits"),
        (&["deny", "add", "203.0.113.9", "--ttl", "10m", "--reason", "<b>x</b>"], "denied"),
    ] {
        let begin = Instant::now();
        cli.ok(change);
        let target = if table == "limits" { "198.51.100.0/24" } else { "203.0.113.9" };
        browser.wait(&has_row(table, target), TIMEOUT);
        println!("{change:?} shows after {} ms", begin.elapsed().as_millis());
        assert!(begin.elapsed() < Duration::from_secs(2));
    }
    assert_eq!(browser.eval("document.querySelectorAll('#denied b').length"), 0);
    assert!(browser.text("#denied").contains("<b>x</b>"), "what others write is text");

    // The command to copy is the one that does it.
    let command = "document.querySelector('#offenders tbody button').title";
    let command = browser.eval(command).as_str().unwrap_or_default().to_owned();
    assert_eq!(command, format!("limiter deny add {} --ttl 10m", source(66)));
    browser.eval("document.querySelector('#offenders tbody button').click()");
    browser.wait(
        &format!("document.getElementById('done').textContent.includes('{command}')"),
        TIMEOUT,
    );
    let words: Vec<_> = command.split(' ').skip(1).collect();
    cli.ok(&words);
    browser.wait(&has_row("denied", &source(66)), TIMEOUT);
    browser.wait("document.getElementById('verdict-text').textContent.includes('denied')", TIMEOUT);
    cli.ok(&["deny", "del", &source(66)]);

    keyboard(&mut browser);
    sizes_and_colours(&mut browser);
    let _ = sending.stop();
    assert_clean(&browser);
}

/// Tab reaches every control, visibly, and Enter does what a click does.
fn keyboard(browser: &mut Browser) {
    browser.eval("document.activeElement.blur(); window.scrollTo(0, 0)");
    let mut reached = Vec::new();
    for _ in 0..40 {
        browser.press("Tab");
        let focused = browser.eval(
            "(() => { const it = document.activeElement; const style = getComputedStyle(it);
               return [it.textContent.trim() || it.id || it.tagName, style.outlineStyle, it.getAttribute('aria-label') ?? '']; })()",
        );
        let word = |at: usize| focused[at].as_str().unwrap_or_default().to_owned();
        if word(0).len() < 40 {
            assert_ne!(word(1), "none", "the focus on {focused} cannot be seen");
        }
        reached.push(word(0));
        if word(0) == "Passed"
            && browser.eval("document.activeElement.closest('th') !== null") == true
        {
            browser.press("Enter");
            browser.wait(
                "document.activeElement.closest('th').getAttribute('aria-sort') === 'descending'",
                TIMEOUT,
            );
        }
        if reached.last().is_some_and(|name| name == "Copy show") {
            break;
        }
    }
    for control in
        ["Skip to the list of sources", "Over limit", "Source", "Passed", "Copy deny", "Copy show"]
    {
        assert!(reached.iter().any(|name| name == control), "{control} is not in {reached:?}");
    }
    let nameless = browser.eval(
        "[...document.querySelectorAll('button, a, input, select, [role=img], [role=region], table')]
           .filter(it => it.offsetParent && !it.textContent.trim() && !it.labels?.length &&
             !it.getAttribute('aria-label') && !it.getAttribute('aria-labelledby')).length",
    );
    assert_eq!(nameless, 0, "everything has a name for a screen reader");
    // Told anew each ten seconds.
    browser.wait(
        "document.getElementById('chart-text').textContent.includes('Over limit: now')",
        2 * TIMEOUT,
    );
    // An announcement, and not one each second.
    assert_eq!(
        browser.eval("document.getElementById('verdict-spoken').getAttribute('aria-live')"),
        "polite"
    );
    assert!(!browser.text("#verdict-spoken").is_empty());
}

fn sizes_and_colours(browser: &mut Browser) {
    let mut backs = Vec::new();
    for (width, dark) in [(400, false), (400, true), (1600, false), (1600, true)] {
        browser.look(width, 1000, dark);
        browser.eval("new Promise(done => setTimeout(() => done(true), 1500))");
        let wide = browser.eval("document.documentElement.scrollWidth");
        let beyond = browser.eval(&format!(
            "[...document.querySelectorAll('body *')].filter(it => !it.closest('.scroll') &&
               it.getBoundingClientRect().right > {width}).map(it => it.tagName + '#' + it.id)"
        ));
        let fits = wide.as_u64().is_some_and(|wide| wide <= u64::from(width));
        assert!(fits, "{wide} of {width} pixels wide: {beyond}");
        let drawn = browser.eval("document.querySelectorAll('#chart canvas').length");
        assert_eq!(drawn, 1, "one chart");
        backs.push(browser.eval("getComputedStyle(document.body).backgroundColor"));
        let colours = if dark { "dark" } else { "light" };
        let path = pictures().join(format!("{width}-{colours}.png"));
        browser.screenshot(&path);
        println!("{}", path.display());
    }
    assert_ne!(backs[0], backs[1], "dark is not light");
    // Something is drawn besides the grid: pixels in the colour of the line.
    let drawn = browser.eval(
        "(() => { const canvas = document.querySelector('#chart canvas');
           const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
           let red = 0;
           for (let at = 0; at < data.length; at += 4)
             if (data[at + 3] > 200 && data[at] > 200 && data[at + 1] < 160 && data[at + 2] < 160) red++;
           return red; })()",
    );
    assert!(drawn.as_u64().is_some_and(|pixels| pixels > 50), "{drawn} pixels of the dropped line");
}

#[test]
fn an_admin_can_change_what_others_can_only_see() {
    const TOKEN: &str = "0123456789abcdef-admin";
    let lab = Lab::new(1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("admin-token");
    fs::write(&file, TOKEN).expect("a token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its permissions");
    let file = file.display().to_string();
    let options = ["--http-listen", "127.0.0.1:9090", "--http-admin-token-file", &file];
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    let cli = daemon.cli();
    cli.limit("1000pps", Some("100"), None);
    let sending =
        Sender::new(&lab).start(vec![Stream::new(frame::udp(v4(66), 100), 5000.0, 200_000)]);

    let mut browser = open(&lab);
    browser.wait(&has_row("offenders", &source(66)), TIMEOUT);
    assert_eq!(browser.eval("document.getElementById('admin').hidden"), true);
    assert_eq!(browser.eval("document.getElementById('sign-in').hidden"), false);
    let refused =
        "fetch('/v1/lists/deny', { method: 'POST', body: '198.51.100.1' }).then(it => it.status)";
    assert_eq!(browser.eval(refused), 403);
    browser.complaints.clear();

    let sign_in = |browser: &mut Browser, token: &str| {
        browser.open(&format!("{URL}login"));
        let fill = format!("document.getElementById('token').value = '{token}'");
        browser.eval(&fill);
        browser.eval("document.querySelector('form').submit()");
    };
    sign_in(&mut browser, "not the token, not at all");
    browser.wait("location.search === '?wrong' && document.readyState === 'complete'", TIMEOUT);
    sign_in(&mut browser, TOKEN);
    browser.wait(
        "location.pathname === '/' && document.getElementById('admin')?.hidden === false",
        TIMEOUT,
    );
    assert_eq!(browser.eval("document.cookie"), "", "scripts do not see the session");
    browser.wait(&has_row("offenders", &source(66)), TIMEOUT);
    let button = "[...document.querySelectorAll('#offenders tbody button')].find(it => it.textContent === 'Deny 10 min')";
    browser.eval(&format!("{button}.click()"));
    browser.wait(&has_row("denied", &source(66)), TIMEOUT);
    let denied = cli.ok(&["deny", "list"]);
    assert_eq!(denied["entries"][0]["target"], format!("{}/32", source(66)), "{denied:#}");
    assert!(denied["entries"][0]["expires"].is_string());

    browser.eval(
        "(() => { const form = document.getElementById('set-limit');
           form.rate.value = '42pps'; form.target.value = '198.51.100.0/24'; form.requestSubmit(); })()",
    );
    browser.wait(&has_row("limits", "198.51.100.0/24"), TIMEOUT);
    assert!(cli.limits().iter().any(|limit| limit.target == "198.51.100.0/24"));
    assert_clean(&browser);
    // What is wrong is told by the page.
    browser.eval(
        "(() => { const form = document.getElementById('set-limit');
           form.rate.value = '42'; form.requestSubmit(); })()",
    );
    browser.wait("document.getElementById('done').textContent.includes('failed')", TIMEOUT);
    assert!(browser.text("#done").contains("no unit"), "{}", browser.text("#done"));
    let _ = sending.stop();
}

#[test]
fn hosts_of_a_cluster_show_and_only_there() {
    let mut hosts = Hosts::start(2, &["--http-listen", "127.0.0.1:9090"]);
    hosts.daemons[1].cli().ok(&["limit", "set", "1000pps", "--scope", "cluster"]);
    hosts.wait_limit(&[0, 1], "1000pps");
    let mut browser = open(&hosts.fleet.hosts[0]);
    browser.wait(&has_row("peers", "edge-1"), TIMEOUT);
    browser.wait(&has_row("peers", "edge-2"), TIMEOUT);
    let state = |host: &str| {
        format!(
            "([...document.querySelectorAll('#peers tbody tr')].find(row =>
               row.cells[0].textContent === '{host}')?.cells[1].textContent ?? '')"
        )
    };
    assert_eq!(browser.eval(&state("edge-1")), "this");
    assert_eq!(browser.eval(&state("edge-2")), "alive");
    browser.wait(
        "document.getElementById('peers-note').textContent.includes('100.00 % of each limit')",
        6 * TIMEOUT,
    );
    browser.look(400, 1000, true);
    let wide = browser.eval("document.documentElement.scrollWidth");
    assert!(wide.as_u64().is_some_and(|wide| wide <= 400), "{wide} pixels");
    browser.look(1600, 1000, false);
    browser.screenshot(&pictures().join("cluster.png"));
    // One that dies is told of, first.
    hosts.kill(1);
    browser.wait(&format!("{}.startsWith('gone for')", state("edge-2")), 6 * TIMEOUT);
    assert_eq!(browser.text("#peers tbody th"), "edge-2");
    assert_clean(&browser);
    drop(browser);

    // Elsewhere there is nothing to show.
    let lab = Lab::new(1);
    let options = DaemonOptions::with(&["--http-listen", "127.0.0.1:9090"]);
    let _daemon = Daemon::start_with(&lab, options);
    let browser = &mut open(&lab);
    assert_eq!(browser.eval("document.getElementById('cluster').hidden"), true);
    assert_clean(browser);
}

#[test]
fn who_loses_nothing_is_no_offender_and_the_page_says_which_host_it_is_of() {
    let lab = Lab::new(1);
    let daemon =
        Daemon::start_with(&lab, DaemonOptions::with(&["--http-listen", "127.0.0.1:9090"]));
    // A bucket from the first packet on, and no drops.
    daemon.cli().limit("5pps", Some("20000"), None);
    let sending = Sender::new(&lab).start(vec![
        Stream::new(frame::udp(v4(10), 100), 50.0, 20_000),
        Stream::new(frame::udp(v4(11), 100), 500.0, 20_000),
    ]);
    let mut browser = open(&lab);
    browser.wait(&has_row("offenders", &source(10)), TIMEOUT);
    browser.wait(
        &format!("document.querySelector('#offenders tbody th').textContent === '{}'", source(11)),
        TIMEOUT,
    );
    assert_eq!(browser.text("#offenders-title"), "Heaviest sources");
    let offered = "[...document.querySelectorAll('#offenders tbody button')]
                     .filter(it => it.offsetParent).map(it => it.textContent).join()";
    let offered = browser.eval(offered).as_str().unwrap_or_default().to_owned();
    assert!(offered.contains("Copy show") && !offered.contains("Copy deny"), "{offered}");
    let heights = browser.eval(
        "[...new Set([...document.querySelectorAll('#offenders thead th')]
           .map(it => { const range = document.createRange(); range.selectNodeContents(it.firstElementChild ?? it);
                        return Math.round(range.getBoundingClientRect().top); }))].length",
    );
    assert_eq!(heights, 1, "headers stand on one line");
    // Lines of which there is nothing are not offered.
    let lines =
        "[...document.querySelectorAll('#legend button')].filter(it => it.offsetParent).length";
    assert_eq!(browser.eval(lines), 1);

    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(browser.text("#host"), host.trim());
    assert_eq!(browser.eval("document.title"), format!("{}: limiter", host.trim()));
    // As the commands tell it.
    let changed = daemon.cli().ok(&["report", "--format", "json"])["happened"]["changes"].clone();
    let time = changed.as_array().and_then(|all| all.last()?["time"].as_str()).expect("a change");
    let (_, time) = time.split_once('T').expect("a time of day");
    let wanted = format!("{}Z", time.split('.').next().expect("seconds"));
    let shown = "document.querySelector('#changes tbody th')?.textContent";
    browser.wait(&format!("{shown}?.endsWith('{wanted}')"), TIMEOUT);
    browser.screenshot(&pictures().join("calm.png"));

    // Who then floods is one.
    let flood = Stream::new(frame::udp(v4(66), 100), 30_000.0, 60_000);
    let flooding = Sender::new(&lab).start(vec![flood]);
    browser.wait(
        "document.getElementById('offenders-title').textContent === 'Top offenders'",
        2 * TIMEOUT,
    );
    assert_eq!(browser.text("#offenders tbody th"), source(66));
    let (_, _) = (flooding.stop(), sending.stop());
    assert_clean(&browser);
}
