//! A connection to the store, and calls of its script.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use decide::central::{Answers, Question, SCRIPT};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind,
    TlsCertificates, Value, cmd,
};
use tokio::time::timeout;

use super::address::{Kind, StoreAddress, read_password};

/// How long it may take until a store is reached and known.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The first version with all that the script asks for.
const MIN_VERSION: [u32; 2] = [6, 2];

/// How the store is asked.
#[derive(Clone, Debug)]
pub(crate) struct StoreSettings {
    /// Where it is.
    pub(crate) address: StoreAddress,
    /// The file with the password.
    pub(crate) password: Option<PathBuf>,
    /// The file with who signs its certificate.
    pub(crate) authority: Option<PathBuf>,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
    /// How many replicas have to know of a change before it is answered.
    pub(crate) replicas: u32,
}

/// Why the store does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A file that cannot be used.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// It cannot be reached, or does not know the script.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// It is too old.
    #[error("the store has version {0}: 6.2 is the least")]
    Version(String),
    /// One whose scripts have no integers that are long enough.
    #[error("the store is a 32-bit program, which cannot write its times: take a 64-bit one")]
    Narrow,
    /// A copy.
    #[error("the store is a replica, and takes no changes: give the primary, or redis-sentinel://")]
    Replica,
    /// It says nothing.
    #[error("no answer in {} ms", .0.as_millis())]
    Silent(Duration),
    /// Something else than the script has answered.
    #[error("the answer is none of the script's")]
    Answer,
    /// Too few copies.
    #[error("{0} of {1} replicas have the change")]
    Replicas(i64, u32),
}

impl StoreError {
    /// Whether it may be gone with the next call.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Answer | Self::Replicas(..) => true,
            Self::Redis(error) => match error.kind() {
                ErrorKind::Server(kind) => kind != ServerErrorKind::ReadOnly,
                ErrorKind::Extension => {
                    !["NOAUTH", "NOPERM"].contains(&error.code().unwrap_or_default())
                }
                _ => error.is_timeout(),
            },
            _ => false,
        }
    }
}

/// What a store tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its version.
    pub(super) version: String,
    /// What it forgets where its memory is full.
    pub(super) eviction: Option<String>,
    /// Whether it keeps its memory on a disk: a journal, snapshots.
    pub(super) journal: Option<bool>,
    pub(super) snapshots: Option<bool>,
    /// How far its clock is ahead of this host's, ms.
    pub(super) ahead_ms: i64,
    /// How long a sign of life takes.
    pub(super) round_trip: Duration,
}

/// A connection that many calls use at once.
#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        }
    }
}

/// A store that is known to be one.
#[derive(Clone)]
pub(super) struct Link {
    connection: Connection,
    /// The hash of the script.
    script: String,
    settings: StoreSettings,
    pub(super) facts: Facts,
}

impl Link {
    /// Reaches the store.
    pub(super) async fn connect(settings: &StoreSettings) -> Result<Self, StoreError> {
        let connecting = Self::reach(settings);
        timeout(CONNECT_TIMEOUT, connecting)
            .await
            .unwrap_or(Err(StoreError::Silent(CONNECT_TIMEOUT)))
    }

    async fn reach(settings: &StoreSettings) -> Result<Self, StoreError> {
        let mut connection = connection(settings).await?;
        let facts = Facts::of(&mut connection).await?;
        let loaded = connection.query(cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await?;
        let script = redis::from_redis_value(loaded).map_err(|_| StoreError::Answer)?;
        let mut link = Self { connection, script, settings: settings.clone(), facts };
        let begun = Instant::now();
        // One that is slower than its answers may take is as good as silent.
        link.ping().await?;
        link.facts.round_trip = begun.elapsed();
        Ok(link)
    }

    /// Asks for a sign of life.
    pub(super) async fn ping(&mut self) -> Result<(), StoreError> {
        let ping = cmd("PING");
        match timeout(self.settings.timeout, self.connection.query(&ping)).await {
            Ok(answer) => Ok(answer.map(drop)?),
            Err(_) => Err(StoreError::Silent(self.settings.timeout)),
        }
    }

    /// Asks the questions of some decisions about one domain.
    pub(super) async fn call(
        &mut self,
        since: &[u8],
        questions: &[&Question],
    ) -> Result<Answers, StoreError> {
        let limit = self.settings.timeout;
        let answered = timeout(limit, self.evaluate(since, questions)).await;
        answered.unwrap_or(Err(StoreError::Silent(limit)))
    }

    async fn evaluate(
        &mut self,
        since: &[u8],
        questions: &[&Question],
    ) -> Result<Answers, StoreError> {
        let command = |how: &str, script: &str| {
            let mut command = cmd(how);
            command.arg(script).arg(questions.len() + 1).arg(since);
            for question in questions {
                command.arg(&question.key);
            }
            for question in questions {
                command.arg(&question.argument[..]);
            }
            command
        };
        let answered = match self.query(&command("EVALSHA", &self.script)).await {
            Err(StoreError::Redis(error)) if is_unknown_script(&error) => {
                self.query(&command("EVAL", SCRIPT)).await
            }
            answered => answered,
        };
        let Value::BulkString(reply) = answered? else { return Err(StoreError::Answer) };
        Answers::read(&reply, questions.len()).ok_or(StoreError::Answer)
    }

    /// Sends a call, and waits for the replicas that have to know of it.
    async fn query(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        let Connection::Server(connection) = &mut self.connection else {
            return Ok(self.connection.query(command).await?);
        };
        let replicas = self.settings.replicas;
        if replicas == 0 {
            return Ok(connection.req_packed_command(command).await?);
        }
        let mut both = Pipeline::with_capacity(2);
        // The store stops waiting before this process does, so that the next call is not late as well.
        let wait = self.settings.timeout.as_millis() as u64 * 3 / 4;
        both.add_command(command.clone()).cmd("WAIT").arg(replicas).arg(wait.max(1));
        let (answer, known): (Value, i64) = both.query_async(connection).await?;
        if known < i64::from(replicas) {
            return Err(StoreError::Replicas(known, replicas));
        }
        Ok(answer)
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A connection to where the settings say the store is.
async fn connection(settings: &StoreSettings) -> Result<Connection, StoreError> {
    let StoreSettings { address, .. } = settings;
    let read =
        |path: &PathBuf| std::fs::read(path).map_err(|error| StoreError::File(path.clone(), error));
    let password = match &settings.password {
        None => None,
        Some(path) => {
            Some(read_password(path).map_err(|error| StoreError::File(path.clone(), error))?)
        }
    };
    let password = password.as_deref();
    let root_cert = settings.authority.as_ref().map(read).transpose()?;
    let certificates = TlsCertificates { client_tls: None, root_cert };
    // Calls have times of their own. What is late is not to end the connection of others.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None);
    let open = async |client: Client| -> Result<Connection, StoreError> {
        Ok(Connection::Server(client.get_multiplexed_async_connection_with_config(&config).await?))
    };
    match &address.kind {
        Kind::Cluster => {
            let servers = address.servers().into_iter();
            let servers: Vec<_> = servers
                .map(|server| address.connection(server, password))
                .collect::<Result<_, _>>()?;
            let mut builder = ClusterClientBuilder::new(servers)
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(CONNECT_TIMEOUT);
            if address.is_encrypted() {
                builder = builder.certs(certificates);
            }
            Ok(Connection::Cluster(builder.build()?.get_async_connection().await?))
        }
        Kind::Sentinel(name) => {
            let mut sentinels = sentinels(address, name, password, certificates)?;
            open(sentinels.async_get_client().await?).await
        }
        Kind::Server | Kind::Unix(_) => {
            let Some(server) = address.servers().pop() else { return Err(StoreError::Answer) };
            let server = address.connection(server, password)?;
            open(match address.is_encrypted() {
                true => Client::build_with_tls(server, certificates)?,
                false => Client::open(server)?,
            })
            .await
        }
    }
}

/// Who knows which server is the primary of a name.
fn sentinels(
    address: &StoreAddress,
    name: &str,
    password: Option<&str>,
    certificates: TlsCertificates,
) -> Result<SentinelClient, RedisError> {
    let mut builder =
        SentinelClientBuilder::new(address.servers(), name, SentinelServerType::Master)?;
    let login = address.login(password);
    if let Some(user) = login.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = login.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if address.is_encrypted() {
        builder = builder
            .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    builder.build()
}

impl Facts {
    async fn of(connection: &mut Connection) -> Result<Self, StoreError> {
        let told = match connection.query(&cmd("INFO")).await {
            Ok(told) => text(&told).unwrap_or_default(),
            // A user may be allowed no more than what decisions need.
            Err(error) if error.code() == Some("NOPERM") => String::new(),
            Err(error) => return Err(error.into()),
        };
        let find = |name: &str| {
            let mut lines = told.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim().to_owned())
        };
        if find("role").is_some_and(|role| role == "slave") {
            return Err(StoreError::Replica);
        }
        let version = find("redis_version").unwrap_or_default();
        let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
        if !version.is_empty() && numbers[..] < MIN_VERSION[..] {
            return Err(StoreError::Version(version));
        }
        if find("arch_bits").is_some_and(|bits| bits == "32") {
            return Err(StoreError::Narrow);
        }
        let time = connection.query(&cmd("TIME")).await?;
        let time: Option<(u64, u64)> = redis::from_redis_value(time).ok();
        let (seconds, us) = time.ok_or(StoreError::Answer)?;
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(us);
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Few are allowed to ask that, and a service of somebody else may not tell.
        let mut question = cmd("CONFIG");
        question.arg("GET").arg("save");
        let saved = connection.query(&question).await.ok();
        let saved: Option<HashMap<String, String>> =
            saved.and_then(|saved| redis::from_redis_value(saved).ok());
        let snapshots = saved.and_then(|saved| Some(!saved.get("save")?.is_empty()));
        let version = match find("valkey_version") {
            Some(valkey) => format!("Valkey {valkey}"),
            None if version.is_empty() => version,
            None => format!("Redis {version}"),
        };
        Ok(Self {
            version,
            eviction: find("maxmemory_policy"),
            journal: find("aof_enabled").map(|on| on == "1"),
            snapshots,
            ahead_ms: theirs.as_millis() as i64 - ours.as_millis() as i64,
            round_trip: Duration::ZERO,
        })
    }
}

/// The text of an answer: a cluster has one of each server, the first of which is taken.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Map(entries) => entries.iter().find_map(|(_, value)| text(value)),
        Value::Array(values) => values.iter().find_map(text),
        _ => None,
    }
}
