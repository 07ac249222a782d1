//! A proxy that delays what passes, or lets nothing pass.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{Store, own_port_at};

/// Where something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the store.
    Requests,
    /// From the store to clients.
    Replies,
}

/// What becomes of what passes in each direction, and of the connections.
#[derive(Debug, Default)]
struct State {
    delay: [Duration; 2],
    is_cut: [bool; 2],
    /// The two ends of each connection that was made.
    streams: Vec<TcpStream>,
    connections: u64,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until what was read at `since` may pass; false if it never will.
    fn wait(&self, direction: Direction, since: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over {
            let rest =
                (since + state.delay[direction as usize]).saturating_duration_since(Instant::now());
            let limit = match (state.is_cut[direction as usize], rest) {
                (false, Duration::ZERO) => return true,
                (true, _) => Duration::MAX,
                (false, rest) => rest,
            };
            let waited = self.changed.wait_timeout(state, limit.min(Duration::from_secs(60)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

/// A proxy between clients and a store; what passes it is late by a delay, and lost where it is cut. It ends on
/// drop, with all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: TcpListener,
}

impl Proxy {
    /// Starts one in front of `store`, without a delay.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn to(store: &Store) -> Self {
        let (upstream, shared) = (store.address(), Arc::new(Shared::default()));
        let (address, serving) = (own_port_at(upstream.ip()), Arc::clone(&shared));
        let (listens, listening) = channel();
        let work = move || {
            let listener = TcpListener::bind(address).expect("a port of its own");
            listens.send(listener.try_clone().expect("a descriptor")).expect("somebody waits");
            accept(&listener, upstream, &serving);
        };
        match &store.entrance {
            None => drop(thread::spawn(work)),
            Some(entrance) => drop(entrance.spawn_inside(work)),
        }
        let listener = listening.recv().expect("the proxy listens");
        Self { address, shared, listener }
    }

    /// Where clients reach it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays what passes from now on in each direction, so a reply comes later by twice that.
    pub fn slow(&self, delay: Duration) {
        self.delay(Direction::Requests, delay);
        self.delay(Direction::Replies, delay);
    }

    /// Delays what passes in one direction.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.change(|state| state.delay[direction as usize] = delay);
    }

    /// Lets nothing pass in either direction, as a network that has failed: connections stay, and bytes wait.
    pub fn partition(&self) {
        self.cut(Direction::Requests);
        self.cut(Direction::Replies);
    }

    /// Lets nothing pass in one direction. Without [`Direction::Replies`] the store does what it is asked, and nobody
    /// learns of it.
    pub fn cut(&self, direction: Direction) {
        self.shared.change(|state| state.is_cut[direction as usize] = true);
    }

    /// Lets everything pass again, what has waited before all.
    pub fn heal(&self) {
        self.shared.change(|state| state.is_cut = [false; 2]);
    }

    /// Closes all connections. New ones are taken.
    pub fn disconnect(&self) {
        self.shared.change(State::close);
    }

    /// How many connections it has taken so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).connections
    }
}

impl State {
    fn close(&mut self) {
        for stream in self.streams.drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.is_over = true;
            state.close();
        });
        // Wakes the thread that waits for connections.
        let _ended = SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }
}

/// Takes connections until the listener is shut down.
fn accept(listener: &TcpListener, upstream: SocketAddr, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        // Without a store the client's connection ends at once.
        if let Ok(store) = TcpStream::connect(upstream) {
            let _closed = join(&client, &store, shared);
        }
    }
}

/// Passes on what comes at either end, until both are closed.
fn join(client: &TcpStream, store: &TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let streams = [client.try_clone()?, store.try_clone()?];
    shared.change(|state| {
        state.streams.extend(streams);
        state.connections += 1;
    });
    pump(client, store, Direction::Requests, shared)?;
    pump(store, client, Direction::Replies, shared)
}

fn pump(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    // Its own delay is the only one.
    to.set_nodelay(true)?;
    let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(shared));
    let (sender, receiver) = channel();
    // Reading goes on while bytes wait: what follows is late by the same delay, not by the sum.
    thread::spawn(move || read(from, &sender));
    thread::spawn(move || {
        write(&to, &receiver, direction, &shared);
    });
    Ok(())
}

/// Reads to the end of a connection, for which an empty piece stands.
fn read(mut from: TcpStream, sender: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer).unwrap_or(0);
        if sender.send((Instant::now(), buffer[..count].to_vec())).is_err() || count == 0 {
            return;
        }
    }
}

fn write(
    mut to: &TcpStream,
    receiver: &Receiver<(Instant, Vec<u8>)>,
    direction: Direction,
    shared: &Shared,
) {
    for (read, piece) in receiver {
        let is_sent = shared.wait(direction, read) && to.write_all(&piece).is_ok();
        if !is_sent || piece.is_empty() {
            break;
        }
    }
    let _closed = to.shutdown(Shutdown::Write);
}
