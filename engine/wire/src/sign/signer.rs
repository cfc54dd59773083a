//! The signer of one shard or of the control plane: any credential, any request.

use super::aws::AwsSigner;
use super::azure::AzureSigner;
use super::credential::{Credential, Proof};
use super::unsigned::{HEADERS_MAX, Payload, Realm, Unsigned, covered};
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;
use fuelrail_base::{Error, Kind, Result, WallTime};

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
            Proof::Anonymous => {}
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
    /// that a signature can cover is covered.
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
        let mut lines_read = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut read = httparse::Request::new(&mut []);
        match read.parse_with_uninit_headers(head, &mut lines_read) {
            Err(httparse::Error::TooManyHeaders) => {
                let cause = format!("a request with more than {HEADERS_MAX} headers cannot be signed");
                return Err(Error::new(Kind::Usage, cause));
            }
            parsed => assert_eq!(parsed, Ok(httparse::Status::Complete(head.len())), "{HEAD}"),
        }
        let (method, path_and_query) = (read.method.expect(HEAD), read.path.expect(HEAD));
        let (mut headers, mut host) = (ArrayVec::<(&str, &[u8]), HEADERS_MAX>::new(), "");
        for header in read.headers.iter() {
            match covered(header.name) {
                Some(name) => headers.push((name, header.value)),
                None if header.name == "Host" => host = core::str::from_utf8(header.value).expect(HEAD),
                None => {}
            }
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

fn push_bearer(lines: &mut Vec<u8>, token: &str) {
    for piece in ["Authorization: Bearer ", token, "\r\n"] {
        lines.extend_from_slice(piece.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::write_get;
    use crate::sign::Scope;

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
        let signed = |signer: &mut Signer, credential: &Credential, at: WallTime| {
            let mut text = Vec::new();
            write_get(&mut text, "h", "/k", None, None).unwrap();
            signer.sign_head(credential, at, &mut text, 0).unwrap();
            String::from_utf8(text).unwrap()
        };
        let other = Credential::aws("AKIAIOSFODNN7EXAMPLE", "another", None).unwrap();
        let mut signer = Signer::new(realm(false));
        let all = [(keys(None), AT), (keys(None), AT.shifted(86_400)), (other, AT), (keys(None), AT)];
        let warm = all.each_ref().map(|(credential, at)| signed(&mut signer, credential, *at));
        let fresh = all.each_ref().map(|(credential, at)| signed(&mut Signer::new(realm(false)), credential, *at));
        assert_eq!(warm, fresh);
        assert!(warm[0] != warm[1] && warm[0] != warm[2]);
    }

    #[test]
    fn a_request_with_too_much_to_sign_is_refused_and_left_as_it_was() {
        let many = format!("/k?{}", "a=1&".repeat(40));
        let mut text = Vec::new();
        write_get(&mut text, "h", &many, None, None).unwrap();
        let before = text.clone();
        let error = Signer::new(realm(false)).sign_head(&keys(None), AT, &mut text, 0).unwrap_err();
        assert!(error.kind() == Kind::Usage && text == before, "{error}");
    }
}
