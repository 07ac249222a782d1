//! An authority of a test, and what it has signed.

use std::{net::Ipv4Addr, path::Path};

use crate::process;

/// Makes `ca.crt`, and `server.crt` and `client.crt` that it has signed, with `.key` for each, in a folder. The
/// server's is for an address and for `localhost`.
///
/// # Panics
/// If openssl fails.
pub fn make_certificates(folder: &Path, address: Ipv4Addr) {
    let make = |name: &str, extensions: &[&str], is_signed: bool| {
        let file = |name: &str, end: &str| folder.join(format!("{name}.{end}"));
        let mut request = tools::OPENSSL.command();
        request.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        request.args(["-nodes", "-days", "2", "-subj", &format!("/CN=limiter test {name}")]);
        request.args(extensions.iter().flat_map(|extension| ["-addext", extension]));
        if is_signed {
            request.arg("-CA").arg(file("ca", "crt")).arg("-CAkey").arg(file("ca", "key"));
        }
        request.arg("-keyout").arg(file(name, "key")).arg("-out").arg(file(name, "crt"));
        process::run(request);
    };
    // Clients that check strictly take no authority for a server.
    let leaf = "basicConstraints=critical,CA:FALSE";
    let names = format!("subjectAltName=IP:{address},DNS:localhost");
    make("ca", &["keyUsage=critical,keyCertSign"], false);
    make("server", &[leaf, &names], true);
    make("client", &[leaf], true);
}
