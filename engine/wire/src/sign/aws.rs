//! Signature Version 4 of AWS, in its header form. Also what Google Cloud Storage takes from HMAC keys, and every server that
//! speaks S3.
//!
//! Paths are signed as they stand in the request line, which is S3's rule: nothing is escaped twice, dot segments stay.
//! Services other than S3 are asked with the path `/` only, where both rules agree.

use super::credential::Secret;
use super::hash::{LastKey, keyed, push_hex, sha256};
use super::unsigned::{Lines, Parameters, Unsigned, insert_line, push_value};
use crate::date;
use aws_lc_rs::hmac;
use fuelrail_base::{Result, WallTime};

/// What a signature is good for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// `eu-central-1`; what servers of one's own are set to is mostly `us-east-1`, and Google takes `auto`.
    pub region: String,
    /// `s3`, `sts`.
    pub service: &'static str,
}

/// What the signature says of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Nothing: TLS and checksums guard it. Costs no pass over the bytes.
    Unsigned,
    /// Its SHA-256, in hexadecimal.
    Sha256(&'a str),
}

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
        let added = covered.len();
        let mut own = [("x-amz-date", Some(&stamp[..])), ("", None), ("", None), ("", None)];
        if payload == Payload::Unsigned {
            own[1] = ("x-amz-content-sha256", Some(UNSIGNED.as_bytes()));
        }
        own[2] = ("x-amz-security-token", token.map(|token| token.expose().as_bytes()));
        own[3] = ("x-amz-request-payer", requester_pays.then_some(&b"requester"[..]));
        for (name, value) in own {
            if let Some(value) = value {
                push_line(lines, name, value);
                insert_line(&mut covered, name, value)?;
            }
        }
        debug_assert!(covered.len() > added, "the date is always one of them");
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The signature of a request whose date is all that the signer adds.
    fn signature(
        (id, secret, token): (&str, &str, Option<&str>),
        (region, service): (&str, &'static str),
        (method, host, path): (&str, &str, &str),
        headers: &[(&str, &str)],
        (hash, at): (&str, u64),
    ) -> (String, String) {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let request = Unsigned { method, host, path_and_query: path, headers: &headers };
        let (id, secret, token) = (Secret::new(id), Secret::new(secret), token.map(Secret::new));
        let scope = Scope { region: region.into(), service };
        let mut lines = Vec::new();
        AwsSigner::default()
            .sign(
                (&id, &secret, token.as_ref()),
                (&scope, false),
                (&request, Payload::Sha256(hash)),
                WallTime(at),
                &mut lines,
            )
            .unwrap();
        let lines = String::from_utf8(lines).unwrap();
        let names = lines.split("SignedHeaders=").nth(1).unwrap().split(',').next().unwrap().to_string();
        (names, lines.trim_end().rsplit('=').next().unwrap().to_string())
    }

    /// The examples of the S3 API reference, "Signature Calculations for the Authorization Header".
    #[test]
    fn the_examples_of_the_s3_reference() {
        let body = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        for (method, path, headers, hash, names, wanted) in [
            (
                "GET",
                "/test.txt",
                &[("range", "bytes=0-9"), ("x-amz-content-sha256", NOTHING)][..],
                NOTHING,
                "host;range;x-amz-content-sha256;x-amz-date",
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test%24file.text",
                &[
                    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                    ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                    ("x-amz-content-sha256", body),
                ],
                body,
                "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/?lifecycle",
                &[("x-amz-content-sha256", NOTHING)],
                NOTHING,
                "host;x-amz-content-sha256;x-amz-date",
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/?prefix=J&max-keys=2",
                &[("x-amz-content-sha256", NOTHING)],
                NOTHING,
                "host;x-amz-content-sha256;x-amz-date",
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let keys = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None);
            let request = (method, "examplebucket.s3.amazonaws.com", path);
            let got = signature(keys, ("us-east-1", "s3"), request, headers, (hash, 1_369_353_600));
            assert_eq!(got, (names.into(), wanted.into()), "{method} {path}");
        }
    }

    /// Name, method, path, headers, hash of the body, session token, signature.
    type Case = (
        &'static str,
        &'static str,
        &'static str,
        &'static [(&'static str, &'static str)],
        &'static str,
        Option<&'static str>,
        &'static str,
    );

    const FORM: &str = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
    const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

    /// Those cases of the `aws-sig-v4-test-suite` that do not turn on the paths of services other than S3.
    const CASES: [Case; 8] = [
        (
            "get-vanilla",
            "GET",
            "/",
            &[],
            NOTHING,
            None,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "post-vanilla",
            "POST",
            "/",
            &[],
            NOTHING,
            None,
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "get-vanilla-query-order-key-case",
            "GET",
            "/?Param2=value2&Param1=value1",
            &[],
            NOTHING,
            None,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "get-vanilla-empty-query-key",
            "GET",
            "/?Param1=value1",
            &[],
            NOTHING,
            None,
            "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        ),
        (
            "get-header-key-duplicate",
            "GET",
            "/",
            &[("my-header1", "value2"), ("my-header1", "value2"), ("my-header1", "value1")],
            NOTHING,
            None,
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "get-header-value-trim",
            "GET",
            "/",
            &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
            NOTHING,
            None,
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "post-x-www-form-urlencoded",
            "POST",
            "/",
            &[("content-type", "application/x-www-form-urlencoded")],
            FORM,
            None,
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
        (
            "post-sts-header-before",
            "POST",
            "/",
            &[],
            NOTHING,
            Some(TOKEN),
            "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
        ),
    ];

    #[test]
    fn the_cases_of_the_vendors_suite() {
        for (name, method, path, headers, hash, token, wanted) in CASES {
            let keys = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token);
            let request = (method, "example.amazonaws.com", path);
            let got = signature(keys, ("us-east-1", "service"), request, headers, (hash, 1_440_938_160));
            assert_eq!(got.1, wanted, "{name}");
        }
    }
}
