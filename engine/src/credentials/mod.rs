//! Credentials: found where the tools of each cloud look for them, and renewed before they end, off the hot path.
//!
//! One thread per process and chain of sources gets new ones; shards and the control plane sign with what it last got. Why the chains
//! are written here is in `docs/decisions/credentials.md`.

mod aws;
mod keep;
mod profile;
mod roles;
mod settings;
mod tokens;

use std::path::Path;

use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::sign::Credential;
use futures_util::future::LocalBoxFuture;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use zeroize::Zeroizing;

pub(crate) use self::aws::region;
pub(crate) use self::keep::authority_for;
use self::profile::Profiles;
pub use self::settings::{CredentialProvider, Credentials, SharedProvider};
pub(crate) use self::settings::{Origin, Provider};
use crate::client::Answer;
use crate::environment::Environment;
use crate::service::Service;

/// Reads `bytes`, any at all, as each kind of file and answer that brings credentials: they are understood or refused, and no refusal repeats
/// what they say. For the fuzzer, see [`crate::fuzz`].
pub(crate) fn understood(bytes: &[u8]) {
    if let Ok(text) = core::str::from_utf8(bytes) {
        for prefixed in [false, true] {
            if let Err(error) = Profiles::default().add(text, prefixed) {
                let number = error.cause().strip_prefix("line ").and_then(|rest| rest.split_once(' '));
                let line = number.and_then(|(number, _)| text.lines().nth(number.parse::<usize>().ok()? - 1));
                assert!(line.is_some_and(|line| !line.contains('=')), "{error}");
            }
        }
    }
    match tokens::exchange(bytes, WallTime(1)) {
        Ok((_, body)) => assert!(body.starts_with("grant_type=") && body.bytes().all(|byte| byte.is_ascii_graphic())),
        Err(error) => assert!(matches!(error.kind(), Kind::Usage | Kind::Denied), "{error}"),
    }
    let answer = Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::copy_from_slice(bytes) };
    if let Err(error) = tokens::token_in(&answer, Credential::bearer) {
        assert!(
            matches!(error.kind(), Kind::Denied | Kind::Usage) && !error.cause().contains(char::is_control),
            "{error}"
        );
    }
}

/// A credential as fetched.
#[derive(Clone, Debug)]
struct Fetched {
    credential: Credential,
    /// When it was issued, by the issuer's clock, which its expiry also refers to.
    at: Option<WallTime>,
    /// Fetching again yields the same: it is in the process's own environment.
    fixed: bool,
}

impl Fetched {
    fn new(credential: Credential) -> Fetched {
        Fetched { credential, at: None, fixed: false }
    }
}

/// A source's credential, or the reason it has none, after which the next source is tried.
type Source = Result<Fetched, String>;

/// The credential of the first source that has one.
///
/// # Errors
/// `Denied` with the reason of every source, when none has one. A source that is configured and fails ends the search: a later one would be
/// another identity.
async fn first<'a>(
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
        .with_hint("set up one of these, or set anonymous = true (FUELRAIL_ANONYMOUS=true) if the bucket is public"))
}

/// A refusal is final; a service that did not respond may be retried.
fn kind_of(error: &Error) -> Kind {
    if error.kind().retryable() { error.kind() } else { Kind::Denied }
}

/// The content of [`form`].
const FORM: &str = "application/x-www-form-urlencoded";
/// Timeout of a service that is configured.
const PATIENCE: Duration = Duration::from_secs(10);

/// A remote token service.
fn token_service<'a>(uri: &'a str, environment: &'a Environment) -> Service<'a> {
    Service { uri, patience: PATIENCE, attempts: 3, proxies: Some(environment), ca_file: None }
}

/// The token in a file that the platform rotates: read again each time.
fn token_file(path: &Path) -> Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|e| Error::from_io(Kind::File, format_args!("the token file {}", path.display()), e))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}

/// `name=value` pairs, escaped as forms are.
fn form(pairs: &[(&str, &str)]) -> String {
    let escaped = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests;
