//! Files and answers of credentials on trial: any bytes at all are understood or refused, and no refusal repeats what they say.
//!
//! For the fuzzer, see [`crate::fuzz`].

use super::http::Answer;
use super::profile::Profiles;
use super::{google, oauth};
use fuelrail_base::{Kind, WallTime};
use fuelrail_wire::sign::Credential;
use hyper::body::Bytes;

/// Reads `bytes` as each kind of file and answer that brings credentials.
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
    match google::exchange(bytes, WallTime(1)) {
        Ok((_, body)) => assert!(body.starts_with("grant_type=") && body.bytes().all(|byte| byte.is_ascii_graphic())),
        Err(error) => assert!(matches!(error.kind(), Kind::Usage | Kind::Denied), "{error}"),
    }
    let answer = Answer { status: 200, body: Bytes::copy_from_slice(bytes), at: Some(WallTime(1)) };
    if let Err(error) = oauth::token_in(&answer, Credential::bearer) {
        assert!(
            matches!(error.kind(), Kind::Denied | Kind::Usage) && !error.cause().contains(char::is_control),
            "{error}"
        );
    }
}
