//! Settings that choose the credentials requests are signed with.

use crate::environment::Environment;
use fuelrail_base::Result;
use fuelrail_wire::sign::Credential;
use fuelrail_wire::{Dialect, Endpoint};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Provides the credential that requests are signed with, in place of the clouds' own chains: a fixed [`Credential`] (static keys), or a
/// closure that fetches one.
pub trait CredentialProvider: Send + Sync {
    /// A credential; [`Credential::until`] says when it expires. Called on a thread of its own, minutes before the last one expires and when a
    /// bucket has refused it as expired. The old one stays in use until there is a new one; that a call has taken 5 s is
    /// a warning. It must not read with itself, which would wait for ever.
    ///
    /// # Errors
    /// The reason there is none; a panic counts as one, of kind `program`. The text is shown: it must not contain a secret.
    fn credential(&self) -> Result<Credential>;
}

impl CredentialProvider for Credential {
    fn credential(&self) -> Result<Credential> {
        Ok(self.clone())
    }
}

impl<F: Fn() -> Result<Credential> + Send + Sync> CredentialProvider for F {
    fn credential(&self) -> Result<Credential> {
        self()
    }
}

/// A shared [`CredentialProvider`]. Equal to its clones only; `Debug` prints nothing of it.
#[derive(Clone)]
pub struct SharedProvider(Arc<dyn CredentialProvider>);

// Settings may be read after a panic; the provider's own state is up to the provider.
impl UnwindSafe for SharedProvider {}
impl RefUnwindSafe for SharedProvider {}

impl SharedProvider {
    /// Shares `provider`.
    pub fn new(provider: impl CredentialProvider + 'static) -> SharedProvider {
        SharedProvider(Arc::new(provider))
    }
}

impl CredentialProvider for SharedProvider {
    fn credential(&self) -> Result<Credential> {
        self.0.credential()
    }
}

impl PartialEq for SharedProvider {
    fn eq(&self, other: &SharedProvider) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedProvider {}

impl fmt::Debug for SharedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedProvider")
    }
}

/// Which credentials requests are signed with. By default requests to `s3://`, `gs://` and `az://` URIs are signed with the credentials
/// that the clouds' tools would use here, and requests to `http://` and `https://` URIs are unsigned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The region to sign for; by default that of `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile. Does not by itself cause requests
    /// to be signed.
    pub region: Option<String>,
    /// The AWS profile whose keys are used, in preference to the environment's.
    pub profile: Option<String>,
    /// `true`: sign nothing. `false`: sign requests to `http://` and `https://` URIs, too.
    pub anonymous: Option<bool>,
    /// Send `x-amz-request-payer`: the requester pays for the transfer.
    pub requester_pays: bool,
    /// The source of the clouds' environment variables.
    pub environment: Environment,
    /// A provider of credentials that replaces all of these. Requests to plain URIs are signed, too, unless `anonymous` is `true`.
    pub provider: Option<SharedProvider>,
}

/// A bucket, and how requests to it are signed: decided from settings and URI before the first request. A redirect may move
/// the bucket to another host of the same owner and name the region to sign for; whether and as whom to sign does not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) endpoint: Endpoint,
    /// `None`: requests are unsigned.
    pub(crate) signing: Option<Signing>,
}

/// Whose credentials requests are signed with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signing {
    pub(crate) provider: Provider,
    /// The region to sign for according to the server; `None`: that of the host or of the settings.
    pub(crate) region: Option<String>,
}

/// The cloud whose credentials a bucket accepts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Provider {
    /// AWS, and what speaks S3 like it.
    Aws,
    Google,
    Azure,
}

impl Provider {
    /// The cloud that a URI names by its scheme.
    pub(crate) fn of(uri: &str) -> Option<Provider> {
        match uri.split_once("://")?.0.to_ascii_lowercase().as_str() {
            "s3" | "s3a" => Some(Provider::Aws),
            "gs" | "gcs" => Some(Provider::Google),
            "az" | "abfs" | "abfss" => Some(Provider::Azure),
            _ => None,
        }
    }
}

impl Credentials {
    /// How requests to `uri` are signed; `None`: unsigned. Called once, before the first request: a server's response must not decide it.
    pub(crate) fn signing(&self, uri: &str, endpoint: &Endpoint) -> Option<Signing> {
        let (provider, signed) = Provider::of(uri).map_or_else(|| self.plain_provider(endpoint), |cloud| (cloud, true));
        let anonymous = self.anonymous.unwrap_or(!signed && self.provider.is_none());
        (!anonymous).then_some(Signing { provider, region: None })
    }

    /// Requests to a plain URI are signed only with a profile, or if `AWS_ENDPOINT_URL` names the server: credentials must not go to an
    /// arbitrary server.
    fn plain_provider(&self, endpoint: &Endpoint) -> (Provider, bool) {
        match endpoint.dialect {
            Dialect::Gcs if self.environment.get("AWS_ACCESS_KEY_ID").is_none() => return (Provider::Google, false),
            Dialect::Azure => return (Provider::Azure, false),
            _ => {}
        }
        let named = self
            .environment
            .first(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
            .and_then(|url| url.parse::<Endpoint>().ok());
        let is_named =
            named.is_some_and(|named| (named.scheme, named.authority()) == (endpoint.scheme, endpoint.authority()));
        (Provider::Aws, is_named || self.profile.is_some())
    }
}
