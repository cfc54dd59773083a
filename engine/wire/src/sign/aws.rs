//! Signature Version 4 of AWS, in its header form. Also what Google Cloud Storage takes from HMAC keys, and every server that
//! speaks S3.
//!
//! Paths are signed as they stand in the request line, which is S3's rule: nothing is escaped twice, dot segments stay.
//! Services other than S3 are asked with the path `/` only, where both rules agree.

use super::credential::Secret;
use super::unsigned::{Lines, Parameters, Payload, Scope, Unsigned, insert_line, push_value};
use crate::date;
use aws_lc_rs::{digest, hmac};
use fuelrail_base::{Result, WallTime};

/// The key of one day, and scratch memory.
#[derive(Default)]
pub(super) struct AwsSigner {
    day_key: LastKey,
    canonical: Vec<u8>,
    to_sign: Vec<u8>,
}

const ALGORITHM: &[u8] = b"AWS4-HMAC-SHA256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

impl AwsSigner {
    /// Appends the lines that make `request` a signed one.
    pub(super) fn sign(
        &mut self,
        (id, secret, token): (&Secret, &Secret, Option<&Secret>),
        (scope, requester_pays): (&Scope, bool),
        (request, payload): (&Unsigned<'_>, Payload<'_>),
        at: WallTime,
        lines: &mut Vec<u8>,
    ) -> Result<()> {
        let stamp = date::compact(at);
        let mut covered = Lines::new();
        insert_line(&mut covered, "host", request.host.as_bytes())?;
        // The length is framing, and a proxy's to change.
        for (name, value) in request.headers.iter().filter(|(name, _)| *name != "content-length") {
            insert_line(&mut covered, name, value)?;
        }
        for (name, value) in [
            ("x-amz-date", Some(&stamp[..])),
            ("x-amz-content-sha256", (payload == Payload::Unsigned).then_some(UNSIGNED.as_bytes())),
            ("x-amz-security-token", token.map(|token| token.expose().as_bytes())),
            ("x-amz-request-payer", requester_pays.then_some(&b"requester"[..])),
        ] {
            if let Some(value) = value {
                push_line(lines, name, value);
                insert_line(&mut covered, name, value)?;
            }
        }
        self.canonicalise(request, payload, &covered)?;
        self.name_what_is_signed(scope, &stamp);
        let day: [u8; 8] = stamp[..8].try_into().expect("a stamp begins with eight digits");
        let key = self.day_key.get(secret, day, || day_key(secret, &day, scope));
        let signature = hmac::sign(key, &self.to_sign);
        lines.extend_from_slice(b"Authorization: ");
        lines.extend_from_slice(ALGORITHM);
        lines.extend_from_slice(b" Credential=");
        lines.extend_from_slice(id.expose().as_bytes());
        lines.push(b'/');
        push_scope(lines, scope, &day);
        lines.extend_from_slice(b", SignedHeaders=");
        push_names(lines, &covered);
        lines.extend_from_slice(b", Signature=");
        push_hex(lines, signature.as_ref());
        lines.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn canonicalise(&mut self, request: &Unsigned<'_>, payload: Payload<'_>, covered: &Lines<'_>) -> Result<()> {
        let out = &mut self.canonical;
        out.clear();
        out.extend_from_slice(request.method.as_bytes());
        out.push(b'\n');
        out.extend_from_slice(request.parts().0.as_bytes());
        out.push(b'\n');
        // Where it lies it stays: moved, it would be a kilobyte, however few there are.
        let mut parameters = Parameters::new();
        request.parameters(&mut parameters)?;
        for (n, (name, value)) in parameters.iter().enumerate() {
            if n > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value.as_bytes());
        }
        out.push(b'\n');
        for (n, (name, value)) in covered.iter().enumerate() {
            if n > 0 && covered[n - 1].0 == *name {
                // Lines of one name are one line, with commas.
                out.pop();
                out.push(b',');
            } else {
                out.extend_from_slice(name.as_bytes());
                out.push(b':');
            }
            push_value(out, value);
            out.push(b'\n');
        }
        out.push(b'\n');
        push_names(out, covered);
        out.push(b'\n');
        out.extend_from_slice(match payload {
            Payload::Unsigned => UNSIGNED.as_bytes(),
            Payload::Sha256(hex) => hex.as_bytes(),
        });
        Ok(())
    }

    fn name_what_is_signed(&mut self, scope: &Scope, stamp: &[u8; 16]) {
        let out = &mut self.to_sign;
        out.clear();
        out.extend_from_slice(ALGORITHM);
        out.push(b'\n');
        out.extend_from_slice(stamp);
        out.push(b'\n');
        push_scope(out, scope, &stamp[..8]);
        out.push(b'\n');
        push_hex(out, sha256(&self.canonical).as_ref());
    }
}

fn push_line(lines: &mut Vec<u8>, name: &str, value: &[u8]) {
    for piece in [name.as_bytes(), b": ", value, b"\r\n"] {
        lines.extend_from_slice(piece);
    }
}

fn push_scope(out: &mut Vec<u8>, scope: &Scope, day: &[u8]) {
    for piece in [day, b"/", scope.region.as_bytes(), b"/", scope.service.as_bytes(), b"/aws4_request"] {
        out.extend_from_slice(piece);
    }
}

fn push_names(out: &mut Vec<u8>, covered: &Lines<'_>) {
    for (n, (name, _)) in covered.iter().enumerate() {
        if n > 0 && covered[n - 1].0 == *name {
            continue;
        }
        if n > 0 {
            out.push(b';');
        }
        out.extend_from_slice(name.as_bytes());
    }
}

/// Once a day and credential: four hashes, each the key of the next.
fn day_key(secret: &Secret, day: &[u8], scope: &Scope) -> hmac::Key {
    let first = zeroize::Zeroizing::new([b"AWS4", secret.expose().as_bytes()].concat());
    let mut key = keyed(&first, day);
    for part in [scope.region.as_bytes(), scope.service.as_bytes(), b"aws4_request"] {
        key = keyed(key.as_ref(), part);
    }
    hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
}

/// Appends `bytes` in lower-case hexadecimal.
fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    out.extend(digits.map(|digit| b"0123456789abcdef"[usize::from(digit)]));
}

/// SHA-256 of `bytes` in hexadecimal, as signatures have it.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(64);
    push_hex(&mut out, sha256(bytes).as_ref());
    String::from_utf8(out).expect("hexadecimal is ASCII")
}

pub(super) fn sha256(bytes: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, bytes)
}

fn keyed(key: &[u8], bytes: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes)
}

/// The key made last, kept while what it was made from stays the same.
#[derive(Default)]
pub(super) struct LastKey {
    made: Option<(Secret, [u8; 8], hmac::Key)>,
}

impl LastKey {
    /// The key for `secret` on `day`; `make` is asked when it is another one than before.
    pub(super) fn get(&mut self, secret: &Secret, day: [u8; 8], make: impl FnOnce() -> hmac::Key) -> &hmac::Key {
        if !self.made.as_ref().is_some_and(|(of, at, _)| of == secret && *at == day) {
            self.made = None;
        }
        &self.made.get_or_insert_with(|| (secret.clone(), day, make())).2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const FORM: &str = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";

    /// Those cases of the `aws-sig-v4-test-suite` that requests to buckets do not have. All others are held against the vendor's own
    /// implementation, in `tests/signing.rs`.
    #[test]
    fn cases_of_the_vendors_suite() {
        for (method, headers, hash, wanted) in [
            (
                "GET",
                &[("my-header1", &b"value2"[..]), ("my-header1", b"value2"), ("my-header1", b"value1")][..],
                NOTHING,
                "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
            ),
            (
                "GET",
                &[("my-header1", b" value1"), ("my-header2", b" \"a   b   c\"")],
                NOTHING,
                "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
            ),
            (
                "POST",
                &[("content-type", b"application/x-www-form-urlencoded")],
                FORM,
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let request = Unsigned { method, host: "example.amazonaws.com", path_and_query: "/", headers };
            let keys = (&Secret::new("AKIDEXAMPLE"), &Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"), None);
            let scope = Scope { region: "us-east-1".into(), service: "service" };
            let (mut lines, at) = (Vec::new(), WallTime(1_440_938_160));
            let signed = (&request, Payload::Sha256(hash));
            AwsSigner::default().sign(keys, (&scope, false), signed, at, &mut lines).unwrap();
            let lines = String::from_utf8(lines).unwrap();
            assert!(lines.ends_with(&format!("Signature={wanted}\r\n")), "{headers:?}: {lines}");
        }
    }
}
