//! Who answers: each a process of its own.

use std::{
    fs, io,
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use serde::Serialize;
use tempfile::TempDir;
use tests::{
    cli::built_binary,
    process::{Background, wait_for},
};

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// `limiter-serve`.
    Limiter,
    /// GCRA behind the same faces, in one process.
    Throttlecrab,
    /// Nobody decides.
    Constant,
    /// GCRA as a script in Redis.
    Redis,
    /// A counter in Redis, which limits nothing.
    RedisIncr,
}

const RULES: &str = "
domain: bench
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 1000, burst: 100 }
";

/// All contenders, at work.
pub(crate) struct Servers {
    _processes: Vec<Background>,
    _home: TempDir,
}

/// Ports of the faces in their order, from a contender's first one on.
const LIMITER: u16 = 16_380;
const THROTTLECRAB: u16 = 16_390;
const CONSTANT: u16 = 16_400;
const REDIS: u16 = 16_410;

impl Contender {
    const fn first_port(self) -> u16 {
        match self {
            Self::Limiter => LIMITER,
            Self::Throttlecrab => THROTTLECRAB,
            Self::Constant => CONSTANT,
            Self::Redis | Self::RedisIncr => REDIS,
        }
    }

    pub(crate) const fn resp(self) -> u16 {
        self.first_port()
    }

    pub(crate) const fn http(self) -> u16 {
        self.first_port() + 1
    }

    pub(crate) const fn grpc(self) -> u16 {
        self.first_port() + 2
    }
}

/// The ports of the servers that answer a constant.
pub(crate) const CONSTANT_PORTS: [u16; 3] = [CONSTANT, CONSTANT + 1, CONSTANT + 2];

impl Servers {
    pub(crate) fn start() -> io::Result<Self> {
        let home = tempfile::tempdir_in("/dev/shm")?;
        let rules = home.path().join("rules.yaml");
        fs::write(&rules, RULES)?;
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut limiter = tools::own(built_binary("limiter-serve"));
        limiter.arg("--rules").arg(&rules).arg("--state-dir").arg(home.path());
        limiter.args(["--resp", &at(LIMITER), "--http", &at(LIMITER + 1)]);
        limiter.args(["--grpc", &at(LIMITER + 2)]);
        let mut throttlecrab = tools::THROTTLECRAB.command();
        for (at, face) in ["redis", "http", "grpc"].iter().enumerate() {
            let port = (THROTTLECRAB + at as u16).to_string();
            throttlecrab.arg(format!("--{face}")).arg(format!("--{face}-port")).arg(port);
        }
        let mut redis = tools::REDIS.command();
        redis.args(["--port", &REDIS.to_string(), "--save", "", "--appendonly", "no"]);
        let mut constant = tools::own(std::env::current_exe()?);
        constant.arg("--constant");
        let quiet = |command: &mut Command| {
            Background::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let commands = [&mut limiter, &mut throttlecrab, &mut redis, &mut constant];
        let processes = commands.map(quiet).into();
        for port in [LIMITER + 2, THROTTLECRAB, THROTTLECRAB + 2, CONSTANT + 2, REDIS] {
            let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(());
            wait_for(format!("port {port}"), Duration::from_secs(20), ready);
        }
        Ok(Self { _processes: processes, _home: home })
    }
}
