//! The signer of one shard or of the control plane: any credential, any request.

use super::aws::{AwsSigner, Payload, Scope};
use super::azure::AzureSigner;
use super::credential::{Credential, Proof};
use super::unsigned::{HEADERS_MAX, Unsigned, is_covered, may_be_covered};
use arrayvec::ArrayVec;
use fuelrail_base::{Error, Kind, Result, WallTime};

/// What signatures are made for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Realm {
    /// Region and service, where those are signed.
    pub scope: Scope,
    /// Who asks pays (S3's `x-amz-request-payer`).
    pub requester_pays: bool,
}

/// Signs requests. Keeps the keys it derived and memory to work in: after the first requests it allocates nothing.
pub struct Signer {
    realm: Realm,
    aws: AwsSigner,
    azure: AzureSigner,
    query: String,
    lines: Vec<u8>,
}

impl Signer {
    /// A signer for this realm.
    #[must_use]
    pub fn new(realm: Realm) -> Signer {
        Signer {
            realm,
            aws: AwsSigner::default(),
            azure: AzureSigner::default(),
            query: String::new(),
            lines: Vec::new(),
        }
    }

    /// Appends to `lines` the header lines that prove `request` to be from the holder of `credential` at `at`, and to `query`
    /// what its path has to carry besides.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the request has more headers or parameters than can be signed.
    pub fn sign(
        &mut self,
        credential: &Credential,
        (request, payload): (&Unsigned<'_>, Payload<'_>),
        at: WallTime,
        query: &mut String,
        lines: &mut Vec<u8>,
    ) -> Result<()> {
        match &credential.proof {
            Proof::Nobody => {}
            Proof::Aws { id, secret, token } => {
                let Realm { scope, requester_pays } = &self.realm;
                let realm = (scope, *requester_pays);
                self.aws.sign((id, secret, token.as_ref()), realm, (request, payload), at, lines)?;
            }
            Proof::Bearer { token } => push_bearer(lines, token.expose()),
            Proof::AzureBearer { token } => {
                AzureSigner::date(at, lines);
                push_bearer(lines, token.expose());
            }
            Proof::AzureKey { account, key } => self.azure.sign((account, key), request, at, lines)?,
            Proof::AzureSas { query: own } => {
                AzureSigner::date(at, lines);
                query.push_str(own.expose());
            }
        }
        Ok(())
    }

    /// Signs the request at the end of `text`, from `from` on: a head without a body, blank line included. Every line of it
    /// that a signature can cover is covered, whoever wrote it.
    ///
    /// # Errors
    /// As [`Signer::sign`]; `text` then is as it was.
    ///
    /// # Panics
    /// When `text` is no such head.
    pub fn sign_head(&mut self, credential: &Credential, at: WallTime, text: &mut Vec<u8>, from: usize) -> Result<()> {
        let (mut query, mut lines) = (core::mem::take(&mut self.query), core::mem::take(&mut self.lines));
        query.clear();
        lines.clear();
        let signed = self.sign_written(credential, at, &text[from..], (&mut query, &mut lines));
        if let Ok(path_end) = signed {
            text.truncate(text.len() - 2);
            text.extend_from_slice(&lines);
            text.extend_from_slice(b"\r\n");
            text.splice(from + path_end..from + path_end, query.bytes());
        }
        (self.query, self.lines) = (query, lines);
        signed.map(drop)
    }

    /// Reads a head and signs it. Returns where its path and query end.
    fn sign_written(
        &mut self,
        credential: &Credential,
        at: WallTime,
        head: &[u8],
        (query, lines): (&mut String, &mut Vec<u8>),
    ) -> Result<usize> {
        const HEAD: &str = "a request was written just before";
        let mut written = lines_of(head.strip_suffix(b"\r\n\r\n").expect(HEAD));
        let first = core::str::from_utf8(written.next().expect(HEAD)).expect(HEAD);
        let (method, rest) = first.split_once(' ').expect(HEAD);
        let (path_and_query, _) = rest.split_once(' ').expect(HEAD);
        let mut names = ArrayVec::<[u8; NAME_BYTES_MAX], HEADERS_MAX>::new();
        let mut values = ArrayVec::<(usize, &[u8]), HEADERS_MAX>::new();
        let mut host = "";
        for line in written {
            // Most lines are nobody's to sign, and begin with another letter than those that are.
            if !line.first().is_some_and(|first| may_be_covered(*first)) {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':').expect(HEAD);
            let mut name = [0; NAME_BYTES_MAX];
            let Some(place) = name.get_mut(..colon) else { continue };
            place.copy_from_slice(&line[..colon]);
            place.make_ascii_lowercase();
            let value = line[colon + 1..].trim_ascii();
            let spelt = core::str::from_utf8(place).expect(HEAD);
            if spelt == "host" {
                host = core::str::from_utf8(value).expect(HEAD);
            } else if is_covered(spelt) {
                if names.is_full() {
                    let cause = format!("a request with more than {HEADERS_MAX} headers cannot be signed");
                    return Err(Error::new(Kind::Usage, cause));
                }
                names.push(name);
                values.push((colon, value));
            }
        }
        let mut headers = ArrayVec::<(&str, &[u8]), HEADERS_MAX>::new();
        for (name, (len, value)) in names.iter().zip(&values) {
            headers.push((core::str::from_utf8(&name[..*len]).expect(HEAD), *value));
        }
        let request = Unsigned { method, host, path_and_query, headers: &headers };
        query.push(if path_and_query.contains('?') { '&' } else { '?' });
        self.sign(credential, (&request, Payload::Unsigned), at, query, lines)?;
        if query.len() == 1 {
            query.clear();
        }
        Ok(method.len() + 1 + path_and_query.len())
    }
}

/// Longer header names are nobody's that has to be signed.
const NAME_BYTES_MAX: usize = 64;

fn push_bearer(lines: &mut Vec<u8>, token: &str) {
    for piece in ["Authorization: Bearer ", token, "\r\n"] {
        lines.extend_from_slice(piece.as_bytes());
    }
}

/// The lines of a head, without their line feeds.
fn lines_of(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head);
    core::iter::from_fn(move || {
        let text = rest?;
        let end = memchr::memchr(b'\n', text);
        rest = end.map(|end| &text[end + 1..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Method, Request, write_get};

    const AT: WallTime = WallTime(1_369_353_600);

    fn realm(requester_pays: bool) -> Realm {
        Realm { scope: Scope { region: "us-east-1".into(), service: "s3" }, requester_pays }
    }

    fn head(credential: &Credential, requester_pays: bool, path: &str, range: Option<(u64, u64)>) -> String {
        let mut text = b"before".to_vec();
        write_get(&mut text, "h:9000", path, range, Some("\"tag\"")).unwrap();
        Signer::new(realm(requester_pays)).sign_head(credential, AT, &mut text, 6).unwrap();
        String::from_utf8(text).unwrap().strip_prefix("before").unwrap().to_string()
    }

    fn keys(token: Option<&str>) -> Credential {
        Credential::aws("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", token).unwrap()
    }

    #[test]
    fn whatever_a_request_says_is_signed_and_stays() {
        for (range, token, pays, names) in [
            (Some((0, 9)), None, false, "host;if-match;range;x-amz-content-sha256;x-amz-date"),
            (None, None, false, "host;if-match;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date"),
            (
                Some((5, 9)),
                Some("to/ken=="),
                true,
                "host;if-match;range;x-amz-content-sha256;x-amz-date;x-amz-request-payer;x-amz-security-token",
            ),
        ] {
            let text = head(&keys(token), pays, "/b/k?a=1", range);
            let mut plain = Vec::new();
            write_get(&mut plain, "h:9000", "/b/k?a=1", range, Some("\"tag\"")).unwrap();
            let plain = String::from_utf8(plain).unwrap();
            assert!(text.starts_with(plain.trim_end()) && text.ends_with("\r\n\r\n"), "{text}");
            assert_eq!(text.matches("\r\n\r\n").count(), 1, "{text}");
            assert!(text.contains(&format!("SignedHeaders={names}, Signature=")), "{text}");
            assert!(text.contains("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"), "{text}");
            assert_eq!(text.contains("x-amz-security-token: to/ken==\r\n"), token.is_some(), "{text}");
            assert_eq!(text.contains("x-amz-request-payer: requester\r\n"), pays, "{text}");
        }
    }

    #[test]
    fn each_kind_of_credential_says_what_its_vendor_wants() {
        let plain = head(&Credential::anonymous(), true, "/b/k", None);
        assert!(!plain.contains("Authorization") && !plain.contains("x-amz-date"), "{plain}");
        let bearer = head(&Credential::bearer("tok").unwrap(), false, "/b/k", None);
        assert!(bearer.ends_with("\r\nAuthorization: Bearer tok\r\n\r\n") && !bearer.contains("x-ms-"), "{bearer}");
        let azure = head(&Credential::azure_bearer("tok").unwrap(), false, "/c/k", None);
        assert!(azure.contains("\r\nx-ms-version: ") && azure.contains("\r\nAuthorization: Bearer tok\r\n"), "{azure}");
        for (path, wanted) in
            [("/c/k", "GET /c/k?sv=1&sig=s HTTP/1.1"), ("/c?comp=list", "GET /c?comp=list&sv=1&sig=s HTTP/1.1")]
        {
            let sas = head(&Credential::azure_sas("sv=1&sig=s").unwrap(), false, path, None);
            assert!(sas.starts_with(wanted) && !sas.contains("Authorization"), "{sas}");
        }
        let account = Credential::azure_key("acc", "a2V5").unwrap();
        assert!(head(&account, false, "/c/k", None).contains("\r\nAuthorization: SharedKey acc:"));
    }

    #[test]
    fn a_new_day_and_a_new_secret_are_new_keys() {
        let mut signer = Signer::new(realm(false));
        let mut signed = |credential: &Credential, at: WallTime| {
            let mut text = Vec::new();
            Request::new(Method::Get, "h", "/k").write(&mut text).unwrap();
            signer.sign_head(credential, at, &mut text, 0).unwrap();
            String::from_utf8(text).unwrap()
        };
        let other = Credential::aws("AKIAIOSFODNN7EXAMPLE", "another", None).unwrap();
        let first = signed(&keys(None), AT);
        let (tomorrow, elsewhere) = (signed(&keys(None), AT.shifted(86_400)), signed(&other, AT));
        assert_eq!(signed(&keys(None), AT), first);
        assert!(first != tomorrow && first != elsewhere);
        let fresh = |credential: &Credential, at| {
            let mut text = Vec::new();
            Request::new(Method::Get, "h", "/k").write(&mut text).unwrap();
            Signer::new(realm(false)).sign_head(credential, at, &mut text, 0).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!((tomorrow, elsewhere), (fresh(&keys(None), AT.shifted(86_400)), fresh(&other, AT)));
    }

    #[test]
    fn a_request_with_too_much_to_sign_is_refused_and_left_as_it_was() {
        let many = format!("/k?{}", "a=1&".repeat(40));
        let mut text = Vec::new();
        Request::new(Method::Get, "h", &many).write(&mut text).unwrap();
        let before = text.clone();
        let error = Signer::new(realm(false)).sign_head(&keys(None), AT, &mut text, 0).unwrap_err();
        assert!(error.kind() == Kind::Usage && text == before, "{error}");
    }
}
