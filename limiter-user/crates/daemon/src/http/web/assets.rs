//! The page and what belongs to it, embedded.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../dashboard/", $name))
    };
}

/// What charts are drawn with; the page says so where the build has been made without it.
#[cfg(chart_library)]
const LIBRARY: [(&str, &str, &str); 3] = [
    ("/assets/uplot.js", SCRIPT, include_str!(concat!(env!("OUT_DIR"), "/uplot.js"))),
    ("/assets/uplot.css", CSS, include_str!(concat!(env!("OUT_DIR"), "/uplot.css"))),
    (
        "/assets/uplot-license.txt",
        TEXT,
        // The MIT licence asks for its notice in every copy, and each browser gets one.
        include_str!(concat!(env!("OUT_DIR"), "/uplot-license.txt")),
    ),
];
#[cfg(not(chart_library))]
const LIBRARY: [(&str, &str, &str); 3] = [
    ("/assets/uplot.js", SCRIPT, "// Built without the chart library.\n"),
    ("/assets/uplot.css", CSS, "/* Built without the chart library. */\n"),
    // The same paths as with the library: the page loads them, and a missing one would be an error
    // in its console.
    ("/assets/uplot-license.txt", TEXT, "Built without the chart library.\n"),
];

/// Path, type and text of each file.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, page!("index.html")),
    ("/assets/style.css", CSS, page!("style.css")),
    ("/assets/app.js", SCRIPT, page!("app.js")),
    ("/assets/changes.js", SCRIPT, page!("changes.js")),
    ("/assets/chart.js", SCRIPT, page!("chart.js")),
    ("/assets/format.js", SCRIPT, page!("format.js")),
    ("/assets/live.js", SCRIPT, page!("live.js")),
    ("/assets/peers.js", SCRIPT, page!("peers.js")),
    ("/assets/sources.js", SCRIPT, page!("sources.js")),
    ("/assets/tables.js", SCRIPT, page!("tables.js")),
    ("/assets/icon.svg", "image/svg+xml", page!("icon.svg")),
];

/// Whether everybody gets what is at `path`: it is the same in every copy of the program, so that it tells nothing
/// of this host. The page that asks for a token needs some of it.
pub(super) fn is_public(path: &str) -> bool {
    path.starts_with("/assets/")
}

/// Text of some type, to be asked for again each time: the next version may have another under the same name.
fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text)
}

/// The page that asks for a token. It is no file of [`routes`], because a form is sent to the same path.
pub(super) async fn login() -> impl IntoResponse {
    file(HTML, page!("login.html"))
}

pub(super) fn routes() -> Router {
    FILES.into_iter().chain(LIBRARY).fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { file(kind, text) }))
    })
}
