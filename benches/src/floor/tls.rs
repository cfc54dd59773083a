//! The floor over TLS with the library whose ciphers the loader uses: a blocking loop over rustls on aws-lc, one connection, one
//! request after the other.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use fuelrail::{ByteSize, Error, Kind, Result};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::connections::{broken, closed};
use super::exchange::{Pass, Requests};
use super::{Arena, RECEIVE_BYTES};
use crate::harness::Task;
use crate::harness::protocol::serve;

/// Runs the loop as a contestant until its input ends. `authority` is what the server's certificate is checked against.
///
/// # Errors
/// As [`super::run`], and `Untrusted` for an authority that cannot be read.
pub fn run_tls(authority: &Path, hash: bool, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    let requests = Requests::new(task, "https://")?;
    let mut arena = Arena::new(usize::try_from(task.arena_bytes).unwrap_or(usize::MAX), true)?;
    let config = config(authority)?;
    serve(input, output, || {
        let mut pass = Pass::new(task.batch_size, hash);
        // A handshake is a millisecond of a pass of seconds.
        let mut stream = connect(&config, &requests)?;
        for request in requests.all() {
            stream.write_all(&request.text).map_err(|error| broken(&error))?;
            let mut answer = pass.begin();
            let mut whole = false;
            while !whole {
                let room = arena.room(RECEIVE_BYTES);
                let bytes = match stream.read(room) {
                    Ok(0) => return Err(closed()),
                    Ok(bytes) => bytes,
                    Err(error) => return Err(broken(&error)),
                };
                whole = pass.take(&mut answer, request, &room[..bytes])?;
                arena.take(bytes);
            }
        }
        let into = ByteSize(task.arena_bytes);
        Ok(pass.said(format!("blocking rustls on aws-lc, 1 connection, 1 MiB at a time into {into}")))
    })
}

fn config(authority: &Path) -> Result<Arc<ClientConfig>> {
    let failed =
        |error: &dyn core::fmt::Debug| Error::new(Kind::Untrusted, format!("{}: {error:?}", authority.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).map_err(|error| failed(&error))? {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| failed(&error))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

fn connect(config: &Arc<ClientConfig>, requests: &Requests) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let stream = requests.connect()?;
    let server = stream.peer_addr().map_err(|error| broken(&error))?.ip();
    let client = ClientConnection::new(Arc::clone(config), ServerName::from(server));
    Ok(StreamOwned::new(client.map_err(|error| broken(&std::io::Error::other(error)))?, stream))
}
