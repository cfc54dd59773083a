//! What all connections to one server share: its name, whom to believe, and the tickets it gave.

use super::insecure::Anybody;
use super::roots::Roots;
use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::time_provider::TimeProvider;
use std::sync::Arc;

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those signed by one of these authorities, directly or through others, and made out for the server's name.
    Roots(Roots),
    /// Everybody's: whoever is on the way can read and change everything.
    Anybody,
}

/// One server to be spoken to over TLS. Clones share the tickets, so that later connections are short to set up.
#[derive(Clone)]
pub struct Client {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    verifies: bool,
}

impl Client {
    /// A client of the server `host` (a name or an address), for certificates valid at the time `clock` tells.
    ///
    /// # Errors
    /// `Usage` when no certificate can be made out for such a host.
    pub fn new(host: &str, trust: Trust, clock: Arc<dyn TimeProvider>) -> Result<Client> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::new(
                Kind::Usage,
                format!("'{}' is a name no TLS certificate can be made out for", host.escape_debug()),
            )
            .cure("write a DNS name or an address")
        })?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_details(Arc::clone(&provider), clock)
            .with_safe_default_protocol_versions()
            .map_err(|why| Error::new(Kind::Environment, format!("TLS cannot be set up: {why}")))?;
        let verifies = matches!(trust, Trust::Roots(_));
        let builder = match trust {
            Trust::Roots(roots) => builder.with_root_certificates(roots.store),
            Trust::Anybody => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(Arc::clone(&provider))))
            }
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // What the record layer is made from once the handshake is over.
        config.enable_secret_extraction = true;
        Ok(Client { config: Arc::new(config), name, verifies })
    }

    /// Whether the server has to prove who it is: false for [`Trust::Anybody`].
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// The server's name, as its certificate must have it.
    #[must_use]
    pub fn server_name(&self) -> ServerName<'static> {
        self.name.clone()
    }

    /// The same settings for a client of rustls' own kind, without protocols to negotiate and without shared tickets.
    #[must_use]
    pub fn plain_config(&self) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols.clear();
        config.enable_secret_extraction = false;
        config.resumption = rustls::client::Resumption::in_memory_sessions(1);
        config
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}
