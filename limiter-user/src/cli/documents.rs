//! `limiter completions`, and the hidden `limiter documents`: manual pages and shell completions, made from
//! the command lines' types for packages to install, and the reference pages of `docs`. `limiter-serve` has them, too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate, generate_to};
use clap_mangen::Man;

use super::args::Cli;
use super::output::Output;
use api::error::{Failure, exit};

/// Daemons and what administers them.
const SECTION: &str = "8";

pub(super) fn run(directory: &Path) -> Result<u8, Failure> {
    write(directory).map_err(|error| {
        let message = format!("cannot write to {}: {error}", directory.display());
        Failure::new(exit::USAGE, message).hint("name a directory that may be written to")
    })?;
    Ok(exit::OK)
}

/// `limiter completions`
pub(super) fn completions(output: &mut Output<'_>, shell: Shell) -> Result<u8, Failure> {
    // A script wrapped into a document would be sourced by a shell that does not understand it.
    if output.is_json() {
        return Err(Failure::new(exit::USAGE, "completions are a script, not a JSON document")
            .hint("leave --json out"));
    }
    // Into memory first: clap's generator panics where it cannot write, and a closed pipe is no failure.
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "limiter", &mut script);
    output.raw(&script)?;
    Ok(exit::OK)
}

/// What only the page of `limiter` itself says.
// clap knows of neither exit codes nor files.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
0
It worked.
.TP
1
The answer is no, or something is degraded.
.TP
2
Wrong usage or configuration.
.TP
3
No daemon answers.
.TP
4
Privileges are missing, or the kernel refuses.
.SH FILES
.TP
.I /etc/limiter/limiter.toml
The daemon's configuration.
.TP
.I /etc/limiter/cluster.key
The key of the cluster, if the host is in one.
.TP
.I /run/limiter/limiter.sock
Its socket, for root and the group limiter.
.TP
.I /var/lib/limiter
Limits that were set at run time.
.TP
.I /sys/fs/bpf/limiter
The pinned program's maps and links, which work on without the daemon.
.TP
.I /usr/share/limiter
Alert rules for Prometheus and a dashboard for Grafana; the daemon serves metrics at /metrics of its socket.
.TP
.I /etc/limiter/NAME.toml, /run/limiter/NAME/limiter.sock, /var/lib/limiter/NAME, /sys/fs/bpf/limiter@NAME
The same of the instance NAME.
.SH INSTANCES
The interfaces of one daemon share limits and buckets. For separate ones, run a daemon for each as an
instance:
.B systemctl enable --now limiter@NAME
with its interfaces in its configuration, and
.B limiter --instance NAME
or LIMITER_INSTANCE for its commands. An interface belongs to one instance.
.SH "SEE ALSO"
.BR limiter-serve (8),
.BR ip-link (8),
.BR bpf (2),
.BR systemd (1)
"#;

/// The same for `limiter-serve`.
const MORE_OF_SERVE: &str = r#".SH "EXIT STATUS"
.TP
0
It worked.
.TP
1
Another process has the states open, or the system refuses.
.TP
2
Wrong usage, rules or files.
.TP
4
Privileges are missing.
.SH FILES
.TP
.I /etc/limiter/rules
The rules of limiter-serve.service.
.TP
.I /etc/default/limiter-serve
Its environment.
.TP
.I /run/limiter-serve
The states of keys.
.TP
.I /usr/share/doc/limiter/examples
Rules, and configurations of proxies.
.SH "SEE ALSO"
.BR limiter (8),
.BR systemd (1)
"#;

/// The programs that have pages and completions.
fn programs() -> [Command; 2] {
    [Cli::command(), serve::command()]
}

/// The programs with every command, and all that it has.
fn commands() -> [Command; 2] {
    programs().map(|program| {
        // Each command would have a `help` with a page that repeats the others.
        let mut program = program.disable_help_subcommand(true);
        // Only built commands have their full names and the options that every command has.
        program.build();
        program
    })
}

/// Writes `man/`, `completions/` and `reference/` into `directory`.
fn write(directory: &Path) -> io::Result<()> {
    let [man, completions, pages] =
        ["man", "completions", "reference"].map(|name| directory.join(name));
    for directory in [&man, &completions, &pages] {
        fs::create_dir_all(directory)?;
    }
    for program in commands() {
        manual(&program, &man)?;
    }
    for (name, text) in reference() {
        fs::write(pages.join(name), text)?;
    }
    // Not with those: it runs the scenarios, and `sim` has a test of it.
    let scenarios = sim::page().expect("the built-in scenarios are good");
    fs::write(pages.join("scenarios.md"), scenarios)?;
    for mut program in programs() {
        let name = program.get_name().to_owned();
        // Those that the package has a place for.
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            generate_to(shell, &mut program, &name, &completions)?;
        }
    }
    Ok(())
}

/// The reference pages of `docs/reference` about the programs, by their names.
fn reference() -> [(&'static str, String); 2] {
    let mut page = COMMANDS.to_owned();
    for program in commands() {
        describe(&program, &mut page);
    }
    [("cli.md", page), ("configuration.md", settings::reference())]
}

/// What the reference says before the commands.
const COMMANDS: &str = "\
# Command reference

`cargo xtask docs` writes this page from the programs: it has what `--help` prints. `limiter` comes first, with the
options that each of its commands has. `limiter-serve` comes last.
";

/// Adds the help of `command` and of each of its commands.
fn describe(command: &Command, page: &mut String) {
    let is_root = command.get_name() == "limiter";
    let mut own = command.clone().mut_args(|arg| {
        // The page would have them once a command.
        let is_hidden = arg.is_hide_set() || (arg.is_global_set() && !is_root);
        // Values of the environment would make the page depend on who writes it, and a test
        // compares it.
        arg.hide(is_hidden).hide_env_values(true)
    });
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let help = own.render_long_help().to_string();
    let help: Vec<_> = help.lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        describe(inner, page);
    }
}

/// Writes a page for `command` and for each of its commands.
fn manual(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut file = File::create(directory.join(format!("{name}.{SECTION}")))?;
    Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .source(concat!("limiter ", env!("CARGO_PKG_VERSION")))
        .manual("System Administration")
        .render(&mut file)?;
    let more = match name {
        "limiter" => MORE,
        "limiter-serve" => MORE_OF_SERVE,
        _ => "",
    };
    file.write_all(more.as_bytes())?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        manual(inner, directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_printed() {
        for (shell, part) in [(Shell::Bash, "complete -F"), (Shell::Zsh, "#compdef limiter")] {
            let mut script = Vec::new();
            completions(&mut Output::new(false, &mut script), shell).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains(part) && script.contains("cleanup"), "{shell}");
        }
        let json = completions(&mut Output::new(true, &mut Vec::new()), Shell::Bash);
        assert_eq!(json.unwrap_err().code, exit::USAGE);
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(run(directory.path()).unwrap(), exit::OK);
        let read = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();
        let main = read("man/limiter.8");
        assert!(main.contains(".TH LIMITER 8") && main.contains("limiter\\-run(8)"), "{main}");
        assert!(main.contains("/etc/limiter/limiter.toml"), "{main}");
        assert!(main.contains(".SH INSTANCES") && main.contains("\\-\\-instance"), "{main}");
        assert!(read("man/limiter-limit-set.8").contains("1000pps"));
        assert!(read("man/limiter-doctor.8").contains("doctor"));
        assert!(!main.contains("documents"), "hidden commands are not told");
        let serve = read("man/limiter-serve.8");
        assert!(serve.contains(".TH LIMITER-SERVE 8") && serve.contains("/etc/limiter/rules"));
        assert!(serve.contains("token\\-file") && serve.contains("LIMITER_SERVE_HTTP"), "{serve}");
        for (name, part) in [("limiter", "cleanup"), ("limiter-serve", "token-file")] {
            for file in [format!("{name}.bash"), format!("{name}.fish"), format!("_{name}")] {
                assert!(read(&format!("completions/{file}")).contains(part), "{file}");
            }
        }
        assert_eq!(run(Path::new("/dev/null/x")).unwrap_err().code, exit::USAGE);
        let page = read("reference/cli.md");
        assert!(page.contains("## `limiter limit set`") && page.contains("## `limiter-serve`"));
    }

    #[test]
    fn the_committed_reference_is_what_the_program_writes() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
        for (name, text) in reference() {
            let committed = fs::read_to_string(directory.join(name)).unwrap_or_default();
            assert!(committed == text, "docs/reference/{name} is old: run `cargo xtask docs`");
        }
    }
}
