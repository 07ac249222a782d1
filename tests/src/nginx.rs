//! The real nginx.

use std::{fs, path::Path, process::Command};

use crate::Namespace;

/// What starts it in the foreground, with its files in `home`; `http` is the block of that name.
///
/// # Panics
/// If the configuration cannot be written.
#[must_use]
pub fn command(namespace: &Namespace, home: &Path, http: &str) -> Command {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};", home.display()))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; pid {}/pid; error_log stderr;
         events {{ }}
         http {{ access_log off; {temporary} {http} }}",
        home.display()
    );
    fs::write(home.join("conf"), configuration).expect("a configuration");
    let mut command = namespace.command(&tools::NGINX);
    command.args(["-e", "stderr", "-p"]).arg(home).arg("-c").arg(home.join("conf"));
    command
}
