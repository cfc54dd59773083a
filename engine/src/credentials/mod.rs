//! Credentials: found where the tools of each cloud look for them, and renewed before they end, off the hot path.
//!
//! One thread per process and chain of sources gets new ones; shards and the control plane sign with what it last got. Why the chains
//! are written here is in `docs/decisions/credentials.md`.

mod aws;
mod keep;
mod profile;
mod roles;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod tokens;

pub(crate) use aws::region;
pub(crate) use keep::authority_for;
pub use settings::{CredentialProvider, Credentials, SharedProvider};
pub(crate) use settings::{Origin, Provider};

use crate::client::Answer;
use fuelrail_base::{Kind, WallTime};
use fuelrail_wire::sign::Credential;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use profile::Profiles;

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
