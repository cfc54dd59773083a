//! How a bucket is reached: whom it must convince, and who asks.

use crate::credentials::{Credentials, authority_for};
use crate::tls::Tls;
use fuelrail_base::Result;
use fuelrail_flow::Authority;
use fuelrail_wire::Endpoint;
use fuelrail_wire::tls::Client as TlsClient;
use std::sync::Arc;

/// What a request to a bucket needs besides its address. The default believes the system's authorities, and asks as the clouds'
/// tools would from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// How the certificate of an `https://` server is judged.
    pub tls: Tls,
    /// Who asks.
    pub credentials: Credentials,
}

impl From<&Tls> for Access {
    fn from(tls: &Tls) -> Access {
        Access { tls: tls.clone(), credentials: Credentials::default() }
    }
}

impl From<&Access> for Access {
    fn from(access: &Access) -> Access {
        access.clone()
    }
}

/// The same, ready for use.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub(crate) tls: Option<TlsClient>,
    pub(crate) authority: Option<Arc<Authority>>,
}

impl Access {
    /// Reads certificates, and gets a credential where requests to `uri` are signed.
    ///
    /// # Errors
    /// As [`Tls::client`] and [`authority_for`].
    pub(crate) fn open(&self, uri: &str, endpoint: &Endpoint) -> Result<Way> {
        let tls = self.tls.client(endpoint)?;
        Ok(Way { tls, authority: authority_for(&self.credentials, uri, endpoint)? })
    }
}
