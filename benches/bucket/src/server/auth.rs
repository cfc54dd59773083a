//! Checks request signatures, AWS version 4, in headers or in the query. Neither the signatures of single chunks nor the
//! age of a request are checked.

use core::fmt;

use aws_lc_rs::{digest, hmac};
use http::HeaderMap;
use http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use super::refusal::{Refusal, decode, pairs};
use super::sums::hex;

/// Characters that are not escaped in a query; a path leaves `/` as well.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PLAIN_IN_PATHS: AsciiSet = PLAIN.remove(b'/');

/// The key that a bucket requires requests to be signed with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// The access key id, which requests contain.
    pub id: String,
    /// The secret key, which requests do not contain.
    pub secret: String,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A request's signature and what it covers.
#[derive(Default)]
struct Claim {
    credential: String,
    /// Names of the signed headers, joined by `;`.
    headers: String,
    signature: String,
    date: String,
    payload: String,
}

impl Claim {
    fn of(parts: &Parts, query: &[(String, String)]) -> Option<Claim> {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if let Some(authorization) = header("authorization") {
            let fields: Vec<&str> = authorization.strip_prefix("AWS4-HMAC-SHA256")?.split(',').map(str::trim).collect();
            let field = |name: &str| fields.iter().find_map(|field| field.strip_prefix(name)).map(str::to_owned);
            return Some(Claim {
                credential: field("Credential=")?,
                headers: field("SignedHeaders=")?,
                signature: field("Signature=")?,
                date: header("x-amz-date")?,
                payload: header("x-amz-content-sha256")?,
            });
        }
        let value = |name: &str| query.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        Some(Claim {
            credential: value("X-Amz-Credential")?,
            headers: value("X-Amz-SignedHeaders")?,
            signature: value("X-Amz-Signature")?,
            date: value("X-Amz-Date")?,
            payload: "UNSIGNED-PAYLOAD".to_owned(),
        })
    }

    /// Returns the canonical request, as its sender signed it.
    fn canonical(&self, parts: &Parts, query: &[(String, String)]) -> Result<String, Refusal> {
        let encoded = |text: &str| utf8_percent_encode(text, &PLAIN).to_string();
        let path = decode(parts.uri.path())?;
        let signed = query.iter().filter(|(name, _)| name != "X-Amz-Signature");
        let mut query: Vec<String> = signed.map(|(name, value)| encoded(name) + "=" + &encoded(value)).collect();
        query.sort_unstable();
        let headers: String =
            self.headers.split(';').map(|name| format!("{name}:{}\n", value(&parts.headers, name))).collect();
        Ok(format!(
            "{}\n{}\n{}\n{headers}\n{}\n{}",
            parts.method,
            utf8_percent_encode(&path, &PLAIN_IN_PATHS),
            query.join("&"),
            self.headers,
            self.payload
        ))
    }
}

/// Returns a header's values as they are signed: trimmed, joined by commas.
fn value(headers: &HeaderMap, name: &str) -> String {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(",")
}

impl AccessKey {
    /// Rejects a request that is not signed with this key.
    pub(super) fn check(&self, parts: &Parts) -> Result<(), Refusal> {
        let query = pairs(parts.uri.query().unwrap_or_default())?;
        let unsigned = || Refusal::new("AccessDenied", "The request is not signed with AWS4-HMAC-SHA256.");
        let claim = Claim::of(parts, &query).ok_or_else(unsigned)?;
        let (id, scope) = claim.credential.split_once('/').ok_or_else(unsigned)?;
        if id != self.id {
            return Err(Refusal::new("InvalidAccessKeyId", format!("There is no access key `{id}` here.")));
        }
        let canonical = digest::digest(&digest::SHA256, claim.canonical(parts, &query)?.as_bytes());
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", claim.date, hex(canonical.as_ref()));
        let sign = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
        let first = format!("AWS4{}", self.secret).into_bytes();
        let key = scope.split('/').fold(first, |key, part| sign(&key, part).as_ref().to_vec());
        if hex(sign(&key, &text).as_ref()) != claim.signature {
            let message = "The signature does not match the request: check the secret key and the signing method.";
            return Err(Refusal::new("SignatureDoesNotMatch", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples from AWS's documentation of version 4, with headers and with a query.
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let key =
            AccessKey { id: "AKIAIOSFODNN7EXAMPLE".into(), secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into() };
        let host = "examplebucket.s3.amazonaws.com";
        let signed = |authorization: &str| {
            let request = http::Request::get("/test.txt").header("host", host).header("range", "bytes=0-9");
            let request = request
                .header("x-amz-date", "20130524T000000Z")
                .header("x-amz-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
            request.header("authorization", authorization).body(()).unwrap().into_parts().0
        };
        let good = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                    SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
                    Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert_eq!(key.check(&signed(good)), Ok(()));
        for (bad, code) in [
            (good.replace("f0e8", "f0e9"), "SignatureDoesNotMatch"),
            (good.replace("20130524", "20130525"), "SignatureDoesNotMatch"),
            (good.replace("AKIA", "AKIB"), "InvalidAccessKeyId"),
            ("Bearer x".to_owned(), "AccessDenied"),
        ] {
            assert_eq!(key.check(&signed(&bad)).unwrap_err().code, code, "{bad}");
        }
        let query = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F\
                     us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
                     &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        let presigned = http::Request::get(query).header("host", host).body(()).unwrap().into_parts().0;
        assert_eq!(key.check(&presigned), Ok(()));
    }
}
