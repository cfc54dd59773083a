//! Answers that bring a bearer token (RFC 6749, 5.1), as Google and Azure write them.

use super::chain::Fetched;
use super::http::Answer;
use fuelrail_base::{Error, Kind, Result, WallTime};
use fuelrail_io::wall_now;
use fuelrail_wire::sign::{Credential, Secret};
use serde::Deserialize;

#[derive(Deserialize)]
struct Token {
    access_token: Option<Secret>,
    expires_in: Option<Seconds>,
    expires_on: Option<Seconds>,
    error: Option<String>,
}

/// A number, or one in quotes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(u64),
    Text(String),
}

impl Seconds {
    fn get(&self) -> Option<u64> {
        match self {
            Seconds::Number(seconds) => Some(*seconds),
            Seconds::Text(text) => text.parse().ok(),
        }
    }
}

/// The token in an answer. Nothing of one that has none is repeated but its status and its error's name.
///
/// # Errors
/// `Denied` when there is none.
pub(super) fn token_in(answer: &Answer, make: impl FnOnce(&str) -> Result<Credential>) -> Result<Fetched> {
    let token: Option<Token> = serde_json::from_slice(&answer.body).ok();
    let Some(Token { access_token: Some(text), expires_in, expires_on, .. }) = token else {
        let name = token.and_then(|token| token.error).unwrap_or_default();
        let name: String = name.chars().take(64).filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        return Err(Error::new(Kind::Denied, format!("the answer {} holds no token ({name})", answer.status)));
    };
    let on = expires_on.and_then(|seconds| seconds.get()).map(WallTime);
    let now = answer.at.unwrap_or_else(wall_now);
    let lasts = expires_in.and_then(|seconds| seconds.get());
    let expires = on.or(lasts.map(|seconds| WallTime(now.0.saturating_add(seconds))));
    let credential = make(text.expose())?.until(expires);
    Ok(Fetched { at: answer.at, ..Fetched::new(credential) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Bytes;

    #[test]
    fn tokens_are_read_with_their_end_and_refusals_repeat_no_secret() {
        let answer = |body: &'static str| Answer {
            status: 200,
            body: Bytes::from_static(body.as_bytes()),
            at: Some(WallTime(1_000)),
        };
        for (body, expires) in [
            (r#"{"access_token":"tok","expires_in":3599,"token_type":"Bearer"}"#, Some(4_599)),
            (r#"{"access_token":"tok","expires_in":"3599","expires_on":"7000"}"#, Some(7_000)),
            (r#"{"access_token":"tok"}"#, None),
        ] {
            let fetched = token_in(&answer(body), Credential::azure_bearer).unwrap();
            assert_eq!(
                fetched.credential,
                Credential::azure_bearer("tok").unwrap().until(expires.map(WallTime)),
                "{body}"
            );
        }
        for body in [r#"{"error":"invalid_client","error_description":"marked"}"#, "marked", "{}"] {
            let error = token_in(&answer(body), Credential::azure_bearer).unwrap_err();
            assert!(error.kind() == Kind::Denied && !error.to_string().contains("marked"), "{error}");
        }
    }
}
