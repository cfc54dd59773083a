//! What ranks show each other: a certificate of the job's authority, a shared secret, or both.
//!
//! Read once, at start, before the first byte. Never prints.

use crate::config::Config;
use crate::tls::file_roots;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::{Client, Identity, Roots, Trust};
use fuelrail_wire::{Endpoint, Scheme};
use rustls::time_provider::DefaultTimeProvider;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Ranks that send nothing, or are sent nothing, are named one by one up to this many.
pub(super) const NAMED_MAX: usize = 4;
/// What to look at where a rank takes another's secret for a wrong one, …
pub(super) const SECRETS: &str = "compare peer_secret_file of both: all ranks need the same secret";
/// … and where TLS fails between two.
pub(super) const CERTIFICATES: &str = "compare peers, peer_ca_file and peer_cert_file of both: all ranks need a certificate of the same authority, issued for \
                                       the host of their address in peers, or none of them TLS";

/// What a rank shows the others, and wants to be shown.
pub(super) struct Shown {
    pub(super) secret: Option<Arc<str>>,
    pub(super) tls: Option<(Roots, Identity)>,
}

impl Shown {
    pub(super) fn read(config: &Config) -> Result<Shown> {
        let peers = &config.peers;
        let secret = peers.secret_file.as_deref().map(|path| read("peer_secret_file", path)).transpose()?;
        let secret = secret.map(|bytes| secret_of(&bytes)).transpose()?;
        let tls = match (&peers.ca_file, &peers.cert_file, &peers.key_file) {
            (None, None, None) => None,
            (Some(ca), Some(cert), Some(key)) => {
                let roots = file_roots("peer_ca_file", ca)?;
                let (cert, key) = (read("peer_cert_file", cert)?, read("peer_key_file", key)?);
                let identity = Identity::from_pem(&cert, &key);
                Some((roots, identity.map_err(|e| e.within("peer_cert_file and peer_key_file"))?))
            }
            _ => {
                let cause = "peer_ca_file, peer_cert_file and peer_key_file are not all set";
                let hint =
                    "set all three: each rank shows a certificate of the job's authority, and wants to be shown one";
                return Err(Error::new(Kind::Usage, cause).with_hint(hint));
            }
        };
        if secret.is_none() && tls.is_none() {
            let hint = "set peer_secret_file, to a file with the same secret for all ranks; beyond one machine, set also peer_ca_file, peer_cert_file and peer_key_file";
            return Err(
                Error::new(Kind::Usage, "peers would serve blocks to everybody on this machine").with_hint(hint)
            );
        }
        Ok(Shown { secret, tls })
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }

    pub(super) fn client(&self, endpoint: &Endpoint) -> Result<Option<Client>> {
        let Some((roots, identity)) = &self.tls else { return Ok(None) };
        let (trust, clock) = (Trust::Roots(roots.clone()), Arc::new(DefaultTimeProvider));
        Client::showing(&endpoint.host, trust, Some(identity), clock).map(Some)
    }
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::from_io(Kind::File, format_args!("{setting}: {}", path.display()), &e))
}

/// The secret of a file: its text, without the end of the line.
fn secret_of(bytes: &[u8]) -> Result<Arc<str>> {
    let text = core::str::from_utf8(bytes).map_or("", str::trim_end);
    if text.len() < SECRET_BYTES_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let cause =
            format!("peer_secret_file: a secret is a line of at least {SECRET_BYTES_MIN} visible ASCII characters");
        return Err(Error::new(Kind::Usage, cause).with_hint("write one: openssl rand -hex 32 > FILE; chmod 600 FILE"));
    }
    Ok(text.into())
}

const SECRET_BYTES_MIN: usize = 16;

/// An address that blocks would travel to in the clear.
pub(super) fn unprotected(address: &SocketAddr) -> Error {
    Error::new(Kind::Usage, format!("{address} is beyond this machine, and peers use no TLS")).with_hint(
        "set peer_ca_file, peer_cert_file and peer_key_file, to certificates of an authority of the job's own",
    )
}
