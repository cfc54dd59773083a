//! Credential sources, tried in order, and the services behind them.

use crate::environment::Environment;
use crate::service::Service;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::sign::Credential;
use futures_util::future::LocalBoxFuture;
use std::path::Path;
use zeroize::Zeroizing;

/// A credential as fetched.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    pub(super) credential: Credential,
    /// When it was issued, by the issuer's clock, which its expiry also refers to.
    pub(super) at: Option<WallTime>,
    /// Fetching again yields the same: it is in the process's own environment.
    pub(super) fixed: bool,
}

impl Fetched {
    pub(super) fn new(credential: Credential) -> Fetched {
        Fetched { credential, at: None, fixed: false }
    }
}

/// A source's credential, or the reason it has none, after which the next source is tried.
pub(super) type Source = Result<Fetched, String>;

/// The credential of the first source that has one.
///
/// # Errors
/// `Denied` with the reason of every source, when none has one. A source that is configured and fails ends the search: a later one would be
/// another identity.
pub(super) async fn first<'a>(
    sources: impl IntoIterator<Item = (&'static str, LocalBoxFuture<'a, Result<Source>>)>,
) -> Result<Fetched> {
    let mut nothing = Vec::new();
    for (name, source) in sources {
        match source.await {
            Ok(Ok(fetched)) => return Ok(fetched),
            Ok(Err(why)) => nothing.push(format!("{name}: {why}")),
            Err(error) => {
                nothing.push(format!("{name}: {error}"));
                return Err(Error::new(kind_of(&error), format!("no credentials: {}", nothing.join("; "))));
            }
        }
    }
    Err(Error::new(Kind::Denied, format!("no credentials were found: {}", nothing.join("; ")))
        .with_hint("set up one of these; or, if the bucket is public, set anonymous = true, which is .anonymous(true) in Rust and FUELRAIL_ANONYMOUS=true for commands and Python"))
}

/// A refusal is final; a service that did not respond may be retried.
fn kind_of(error: &Error) -> Kind {
    if error.kind().retryable() { error.kind() } else { Kind::Denied }
}

/// The content of [`form`].
pub(super) const FORM: &str = "application/x-www-form-urlencoded";
/// Timeout of a service that is configured.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A remote token service.
pub(super) fn token_service<'a>(uri: &'a str, environment: &'a Environment) -> Service<'a> {
    Service { uri, patience: PATIENCE, attempts: 3, proxies: Some(environment), ca_file: None }
}

/// The token in a file that the platform rotates: read again each time.
pub(super) fn token_file(path: &Path) -> Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|e| Error::from_io(Kind::File, format_args!("the token file {}", path.display()), e))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}

/// `name=value` pairs, escaped as forms are.
pub(super) fn form(pairs: &[(&str, &str)]) -> String {
    let escaped = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    pairs.join("&")
}
