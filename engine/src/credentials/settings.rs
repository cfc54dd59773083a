//! What the configuration says of who asks.

use crate::environment::Environment;
use fuelrail_base::Result;
use fuelrail_wire::sign::Credential;
use fuelrail_wire::{Dialect, Endpoint};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Hands out what requests are signed with, in the place of what the clouds' tools would use: a [`Credential`] that stays (static keys), or
/// a closure that fetches one.
pub trait CredentialProvider: Send + Sync {
    /// A credential; [`Credential::until`] says when it expires. Called on a thread of its own, minutes before the last one expires and when a
    /// bucket has refused it as expired. The old one serves meanwhile, and also where there is no new one.
    ///
    /// # Errors
    /// Why there is none. The text is shown, so it must hold no secret.
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

/// A [`CredentialProvider`] that settings share. Equal to its clones only; prints nothing of it.
#[derive(Clone)]
pub struct SharedProvider(Arc<dyn CredentialProvider>);

// Settings may be looked at after a panic; what the provider keeps is its own affair.
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

/// Who asks a bucket, and how that is found out. The default signs requests to the clouds' own URIs with what their tools
/// would use here, and sends none to a plain `http://` or `https://` one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The region signed for; from `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile where it is not given. It never means that
    /// requests are signed.
    pub region: Option<String>,
    /// The profile of the AWS files whose keys are used, before those of the environment.
    pub profile: Option<String>,
    /// Sign nothing (`true`), or sign also what goes to a plain URI (`false`).
    pub anonymous: Option<bool>,
    /// Who asks pays for it, where the bucket wants that.
    pub requester_pays: bool,
    /// Where the variables of the clouds' tools are read.
    pub environment: Environment,
    /// What hands out credentials in the place of all of these. Requests to plain URIs are signed, too, unless `anonymous` is `true`.
    pub provider: Option<SharedProvider>,
}

/// A bucket, and how requests to it are signed: decided from settings and URI before the first request. An answer may move
/// the bucket within what one owner's name stands for and name the region to sign for; who signs, if anybody, stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) endpoint: Endpoint,
    /// `None` where requests go unsigned.
    pub(crate) signing: Option<Signing>,
}

/// Whose credentials requests are signed with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signing {
    pub(crate) provider: Provider,
    /// The region that the bucket's server says to sign for; `None` takes that of the host or of the settings.
    pub(crate) region: Option<String>,
}

/// Whose credentials a bucket takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Provider {
    /// AWS, and what speaks S3 like it.
    Aws,
    Google,
    Azure,
}

impl Credentials {
    /// How requests to `uri` are signed; `None` where they are sent unsigned. Asked once, before the first request: what a server
    /// answers must not decide it.
    pub(crate) fn signing(&self, uri: &str, endpoint: &Endpoint) -> Option<Signing> {
        let scheme = uri.split("://").next().unwrap_or_default().to_ascii_lowercase();
        let (provider, signed) = match scheme.as_str() {
            "s3" | "s3a" => (Provider::Aws, true),
            "gs" | "gcs" => (Provider::Google, true),
            "az" | "abfs" | "abfss" => (Provider::Azure, true),
            _ => self.plain_provider(endpoint),
        };
        let anonymous = self.anonymous.unwrap_or(!signed && self.provider.is_none());
        (!anonymous).then_some(Signing { provider, region: None })
    }

    /// A plain URI is signed for when somebody asked for it: with a profile, or by naming the server to the tools. A
    /// credential must not go to whatever server a URI names.
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
