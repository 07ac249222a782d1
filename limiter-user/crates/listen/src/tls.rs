//! TLS from PEM files.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A PEM file that does not do.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {problem}", .path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

fn wrong(path: &Path, problem: &dyn Display) -> FileError {
    FileError { path: path.to_owned(), problem: problem.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(path, &error))?;
    // A file without any certificate is no error to the reader of PEM.
    if found.is_empty() {
        return Err(wrong(path, &"there is no certificate in it"));
    }
    Ok(found)
}

/// What encrypts connections, with a certificate and its chain, and its key. With `clients`, only those are let in who have
/// a certificate that one of these authorities has signed. `protocols` are those that a client may ask for, by ALPN.
///
/// # Errors
/// If a file is not what it should be.
pub fn acceptor(
    cert: &Path,
    key: &Path,
    clients: Option<&Path>,
    protocols: &[&str],
) -> Result<TlsAcceptor, FileError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    // The provider is named because rustls panics where the features of a build leave it open.
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(key, &error))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| wrong(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build().map_err(|error| wrong(path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_single_cert(chain, private).map_err(|error| wrong(key, &error))?;
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
