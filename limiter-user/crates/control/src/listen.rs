//! Sockets on addresses that no interface may have yet: the daemon starts before the network does.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use socket2::{Domain, Socket, Type};

/// Binds a socket to `address`, whether or not an interface of this host has it yet.
///
/// # Errors
/// If another socket has it, or this process may not use the port.
pub fn bind(kind: Type, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    if kind == Type::STREAM {
        // Connections of an earlier daemon may linger.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether an interface of this host has the address, as far as can be told.
pub fn is_local(address: SocketAddr) -> bool {
    // Any free port will do; the scope of a link-local address stays.
    let mut probe = address;
    probe.set_port(0);
    let bound = UdpSocket::bind(probe);
    !matches!(bound, Err(error) if error.kind() == ErrorKind::AddrNotAvailable)
}

/// What to do about an address that no interface has.
pub fn how_to_find(address: IpAddr) -> String {
    format!("`ip address` shows which there are; {address} is used as soon as it is added")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses for documentation, which no interface has.
    const ABSENT: [&str; 2] = ["192.0.2.77:0", "[2001:db8::77]:0"];

    #[test]
    fn an_address_need_not_be_there_yet() {
        for kind in [Type::STREAM, Type::DGRAM] {
            for absent in ABSENT {
                let address = absent.parse().unwrap();
                assert!(UdpSocket::bind::<SocketAddr>(address).is_err());
                bind(kind, address).unwrap();
                assert!(!is_local(address));
            }
        }
        for local in ["127.0.0.1:9", "[::1]:9", "0.0.0.0:9", "[::]:9"] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
    }

    #[test]
    fn an_address_in_use_is_refused() {
        for kind in [Type::STREAM, Type::DGRAM] {
            let first = bind(kind, "127.0.0.1:0".parse().unwrap()).unwrap();
            if kind == Type::STREAM {
                first.listen(1).unwrap();
            }
            let address = first.local_addr().unwrap().as_socket().unwrap();
            let error = bind(kind, address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            assert!(is_local(address), "another port is free");
        }
    }
}
