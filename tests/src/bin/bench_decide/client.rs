//! The load: clients that send the next request when the answer to the last one is there.

use std::{
    future::Future,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::{JoinSet, yield_now},
};

/// Keys that are asked about, at random.
const KEYS: u64 = 100_000;

/// How answers came.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Sample {
    fn new(mut latencies: Vec<Duration>, took: Duration) -> Self {
        latencies.sort_unstable();
        let at = |part: f64| {
            let index = (latencies.len().max(1) - 1) as f64 * part;
            latencies.get(index as usize).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
        };
        Self {
            per_second: latencies.len() as f64 / took.as_secs_f64(),
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    }
}

/// Numbers at random; each task has its own sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    const fn key(&mut self) -> u64 {
        self.below(KEYS)
    }
}

/// Appends a request about a key.
pub(crate) type Request = Box<dyn Fn(&mut Vec<u8>, u64) + Send + Sync>;

/// What is sent and read over a plain connection.
pub(crate) struct Exchange {
    pub(crate) request: Request,
    /// How many bytes the answer has that some bytes begin with; none if it is not whole.
    pub(crate) answer: fn(&[u8]) -> Option<usize>,
}

/// `connections` clients that send `depth` requests at once, for `span`.
pub(crate) async fn closed_loop(
    port: u16,
    exchange: Arc<Exchange>,
    connections: u64,
    depth: usize,
    span: Duration,
) -> io::Result<Sample> {
    let (begun, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..connections {
        let exchange = Arc::clone(&exchange);
        tasks.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let (mut random, mut latencies) = (Random::new(number), Vec::new());
            let (mut requests, mut answers) = (Vec::new(), Vec::with_capacity(64 * 1024));
            while begun.elapsed() < span {
                requests.clear();
                (0..depth).for_each(|_| (exchange.request)(&mut requests, random.key()));
                let sent = Instant::now();
                stream.write_all(&requests).await?;
                let mut open = depth;
                while open > 0 {
                    if stream.read_buf(&mut answers).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let mut used = 0;
                    while let Some(length) = (exchange.answer)(&answers[used..]) {
                        used += length;
                        open -= 1;
                    }
                    answers.drain(..used);
                }
                // Each of them waited for the last one.
                latencies.extend(std::iter::repeat_n(sent.elapsed(), depth));
            }
            io::Result::Ok(latencies)
        });
    }
    collect(tasks, begun).await
}

/// Calls that begin at fixed times, `rate` a second: how long each took from the time that it was to begin.
pub(crate) async fn open_loop<C, F>(call: C, rate: u32, span: Duration) -> io::Result<Sample>
where
    C: Fn(u64) -> F,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let (begun, mut tasks, mut random) = (Instant::now(), JoinSet::new(), Random::new(7));
    for number in 0..(f64::from(rate) * span.as_secs_f64()) as u32 {
        let due = begun + Duration::from_secs(1) * number / rate;
        // No timer: those of the runtime are of 1 ms, and ten calls would begin at once.
        while Instant::now() < due {
            yield_now().await;
        }
        let called = call(random.key());
        tasks.spawn(async move {
            called.await?;
            Ok(vec![due.elapsed()])
        });
    }
    collect(tasks, begun).await
}

/// Calls of `at_once` tasks, one after the other in each.
pub(crate) async fn calls<C, F>(call: C, at_once: u64, span: Duration) -> io::Result<Sample>
where
    C: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<()>> + Send,
{
    let (begun, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..at_once {
        let call = call.clone();
        tasks.spawn(async move {
            let (mut random, mut latencies) = (Random::new(number), Vec::new());
            while begun.elapsed() < span {
                let sent = Instant::now();
                call(random.key()).await?;
                latencies.push(sent.elapsed());
            }
            Ok(latencies)
        });
    }
    collect(tasks, begun).await
}

async fn collect(
    mut tasks: JoinSet<io::Result<Vec<Duration>>>,
    begun: Instant,
) -> io::Result<Sample> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.append(&mut done.map_err(io::Error::other)??);
    }
    Ok(Sample::new(all, begun.elapsed()))
}
