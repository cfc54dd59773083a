//! Credentials that are asked for: parses responses about them (temporary keys from AWS: XML from its Security Token Service, JSON from
//! everything else), and error codes of buckets that refuse a request. Writes the signed assertions (RFC 7515, 7519, 7523) with which a
//! service account of Google asks for a token.

use super::credential::{Credential, Secret};
use crate::base64::encode_url_safe;
use crate::date;
use crate::xml::{Visit, printable, walk};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use fuelrail_base::{Error, Kind, Result, WallTime};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::json;

/// The fields of a credential document, as the metadata service, container agents and credential processes write them; documents of the
/// Security Token Service are read into the same.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    code: Option<String>,
    message: Option<String>,
    access_key_id: Option<Secret>,
    secret_access_key: Option<Secret>,
    #[serde(alias = "SessionToken")]
    token: Option<Secret>,
    expiration: Option<String>,
}

impl Visit for Written {
    fn close(&mut self, path: &str, text: &str) -> Result<()> {
        let secret = || Some(Secret::new(text.trim()));
        match path.rsplit_once('/').and_then(|(rest, name)| Some((rest.rsplit('/').next()?, name))) {
            Some(("Credentials", "AccessKeyId")) => self.access_key_id = secret(),
            Some(("Credentials", "SecretAccessKey")) => self.secret_access_key = secret(),
            Some(("Credentials", "SessionToken")) => self.token = secret(),
            Some(("Credentials", "Expiration")) => self.expiration = Some(text.trim().into()),
            Some(("Error", "Code")) => self.code = Some(text.into()),
            Some(("Error", "Message")) => self.message = Some(text.into()),
            _ => {}
        }
        Ok(())
    }
}

impl Written {
    fn credential(&self) -> Result<Credential> {
        let code = self.code.as_deref().filter(|code| *code != "Success");
        if let (Some(code), None) = (code, &self.access_key_id) {
            let message = self.message.as_deref().map_or(String::new(), |message| format!(": {}", printable(message)));
            return Err(Error::new(Kind::Denied, format!("{}{message}", printable(code))));
        }
        let (Some(id), Some(secret)) = (&self.access_key_id, &self.secret_access_key) else {
            return Err(Error::new(Kind::Protocol, "the response contains no credentials"));
        };
        let token = self.token.as_ref().map(Secret::expose).filter(|token| !token.is_empty());
        dated(Credential::aws(id.expose(), secret.expose(), token)?, self.expiration.as_deref())
    }
}

/// The credential in a response of the Security Token Service.
///
/// # Errors
/// [`Kind::Denied`] with what the service says, [`Kind::Protocol`] when it is no such response. Nothing secret is repeated.
pub fn parse_session(xml: &[u8]) -> Result<Credential> {
    let mut written = Written::default();
    walk(xml, &mut written)?;
    // What an error document holds besides is no credential.
    written.access_key_id = written.access_key_id.filter(|_| written.code.is_none());
    written.credential()
}

/// The credential in a JSON document of the metadata service, a container's agent or a credential process.
///
/// # Errors
/// As [`parse_session`].
pub fn parse_keys(json: &[u8]) -> Result<Credential> {
    let written: Written = serde_json::from_slice(json).map_err(|flaw| {
        Error::new(Kind::Protocol, format!("the response is not a JSON credentials document (line {})", flaw.line()))
    })?;
    written.credential()
}

fn dated(credential: Credential, expires: Option<&str>) -> Result<Credential> {
    let Some(text) = expires else { return Ok(credential) };
    let expires =
        date::parse_iso(text).ok_or_else(|| Error::new(Kind::Protocol, "the credentials' expiry is not a date"))?;
    Ok(credential.until(Some(expires)))
}

/// Kind and hint for an error `code` about authentication, permission or time; `None` for any other.
pub fn refusal(status: u16, code: &str) -> Option<(Kind, &'static str)> {
    Some(match code {
        "ExpiredToken"
        | "ExpiredTokenException"
        | "TokenRefreshRequired"
        | "InvalidToken"
        | "RequestExpired"
        | "InvalidAuthenticationInfo"
        | "AuthenticationRequired" => (
            Kind::Expired,
            "the credentials have expired: renew them where they come from (aws sso login, a new token, …)",
        ),
        "RequestTimeTooSkewed" => (Kind::Expired, "this machine's clock is wrong: set it (NTP)"),
        "SignatureDoesNotMatch" => (
            Kind::Denied,
            "the secret access key does not match the access key id, or a proxy modifies requests: copy both again",
        ),
        "InvalidAccessKeyId" | "NotSignedUp" => (
            Kind::Denied,
            "the server does not know this access key id: it was deleted, belongs to another provider, or is temporary and lacks \
             its session token (AWS_SESSION_TOKEN)",
        ),
        "AuthenticationFailed" => (
            Kind::Denied,
            "the storage account's key or the shared access signature is wrong or has expired, or this machine's clock is wrong",
        ),
        "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            (Kind::Denied, "set region to that of the bucket")
        }
        "AccessDenied"
        | "AllAccessDisabled"
        | "AccountProblem"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "InsufficientAccountPermissions"
        | "NoAuthenticationInformation" => (
            Kind::Denied,
            "these credentials lack permission: allow reading and listing (s3:GetObject and s3:ListBucket, storage.objects.get and \
             list, Storage Blob Data Reader), or use other credentials; http:// and https:// URIs are unsigned unless anonymous = false",
        ),
        "ResourceNotFound" if status == 404 => (
            Kind::NotFound,
            "check account and container; without credentials a private container looks as if it did not exist",
        ),
        _ => return None,
    })
}

/// The claims of an assertion.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The issuer: the service account's address.
    pub issuer: &'a str,
    /// Which of its keys signs, if it has a name.
    pub key_id: Option<&'a str>,
    /// The scope requested.
    pub scope: &'a str,
    /// The audience: the token endpoint.
    pub audience: &'a str,
    /// Time of issue.
    pub at: WallTime,
    /// Lifetime, seconds.
    pub lifetime_s: u64,
}

/// `grant`, signed with the RSA key in `pem` (PKCS #8).
///
/// # Errors
/// [`Kind::Usage`] when the key is none. Its text is not repeated.
pub fn assertion(grant: &Grant<'_>, pem: &Secret) -> Result<Secret> {
    let Grant { issuer, key_id, scope, audience, at, lifetime_s } = *grant;
    let unusable = |_| {
        Error::new(Kind::Usage, "the service account's private key is not an RSA key in PEM (PKCS #8)")
            .with_hint("download the account's key file again")
    };
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(|_| unusable(()))?;
    let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| unusable(()))?;
    let header = match key_id {
        Some(key_id) => json!({ "alg": "RS256", "typ": "JWT", "kid": key_id }),
        None => json!({ "alg": "RS256", "typ": "JWT" }),
    };
    let exp = at.0.saturating_add(lifetime_s);
    let claims = json!({ "iss": issuer, "scope": scope, "aud": audience, "iat": at.0, "exp": exp });
    let [header, claims] = [header, claims].map(|part| encode_url_safe(part.to_string().as_bytes()));
    let mut token = format!("{header}.{claims}");
    let mut signature = vec![0; key.public_modulus_len()];
    // This padding takes no randomness: the same text has the same signature.
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature)
        .map_err(|_| Error::new(Kind::Usage, "the service account's private key cannot sign"))?;
    token.push('.');
    token.push_str(&encode_url_safe(&signature));
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base64::decode;
    use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
    use fuelrail_base::WallTime;

    fn wanted(token: Option<&str>) -> Credential {
        Credential::aws("ASIAEXAMPLE", "wJal/x", token).unwrap().until(Some(WallTime(1_369_353_600)))
    }

    #[test]
    fn responses_of_the_token_service() {
        let answer = br#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
          <AssumeRoleWithWebIdentityResult><AssumedRoleUser><Arn>arn:x</Arn></AssumedRoleUser><Credentials>
          <AccessKeyId>ASIAEXAMPLE</AccessKeyId><SecretAccessKey>wJal/x</SecretAccessKey>
          <SessionToken>
            tok==</SessionToken><Expiration>2013-05-24T00:00:00Z</Expiration>
          </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"#;
        assert_eq!(parse_session(answer).unwrap(), wanted(Some("tok==")));
        let refused =
            b"<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code><Message>Ended.</Message></Error>\
                        <RequestId>1</RequestId></ErrorResponse>";
        let error = parse_session(refused).unwrap_err();
        assert!(error.kind() == Kind::Denied && error.to_string().contains("ExpiredToken: Ended."), "{error}");
        for other in ["<a/>", "", "<Credentials><AccessKeyId>x</AccessKeyId></Credentials>"] {
            assert_eq!(parse_session(other.as_bytes()).unwrap_err().kind(), Kind::Protocol, "{other}");
        }
    }

    #[test]
    fn responses_in_json() {
        let instance =
            br#"{"Code":"Success","LastUpdated":"2013-05-23T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"ASIAEXAMPLE",
            "SecretAccessKey":"wJal/x","Token":"tok==","Expiration":"2013-05-24T00:00:00Z"}"#;
        assert_eq!(parse_keys(instance).unwrap(), wanted(Some("tok==")));
        let process = br#"{"Version":1,"AccessKeyId":"ASIAEXAMPLE","SecretAccessKey":"wJal/x","SessionToken":"tok==",
            "Expiration":"2013-05-24T00:00:00+00:00"}"#;
        assert_eq!(parse_keys(process).unwrap(), wanted(Some("tok==")));
        let error = parse_keys(br#"{"Code":"AssumeRoleUnauthorizedAccess","Message":"no trust"}"#).unwrap_err();
        assert!(error.kind() == Kind::Denied && error.to_string().contains("no trust"), "{error}");
        for other in ["{}", "[", r#"{"AccessKeyId":"a","SecretAccessKey":"marked","Expiration":"soon"}"#] {
            let error = parse_keys(other.as_bytes()).unwrap_err();
            assert!(error.kind() == Kind::Protocol && !error.to_string().contains("marked"), "{error}");
        }
    }

    #[test]
    fn only_errors_that_new_credentials_cure_are_retried() {
        for (status, code, kind) in [
            (400, "ExpiredToken", Some(Kind::Expired)),
            (403, "RequestTimeTooSkewed", Some(Kind::Expired)),
            (401, "InvalidAuthenticationInfo", Some(Kind::Expired)),
            (403, "SignatureDoesNotMatch", Some(Kind::Denied)),
            (400, "AuthorizationHeaderMalformed", Some(Kind::Denied)),
            (403, "AccessDenied", Some(Kind::Denied)),
            (404, "NoSuchKey", None),
            (404, "ResourceNotFound", Some(Kind::NotFound)),
            (409, "ResourceNotFound", None),
            (503, "SlowDown", None),
        ] {
            let found = refusal(status, code).map(|(kind, _)| kind);
            assert_eq!(found, kind, "{code}");
            assert_eq!(found.is_some_and(Kind::retryable), kind == Some(Kind::Expired), "{code}");
        }
    }

    /// The URL-safe alphabet, without padding.
    fn bytes(text: &str) -> Vec<u8> {
        let plain = text.replace('-', "+").replace('_', "/");
        decode(format!("{plain}{}", "=".repeat((4 - plain.len() % 4) % 4)).as_bytes()).unwrap()
    }

    #[test]
    fn a_key_that_is_none_is_refused_and_not_repeated() {
        let grant =
            Grant { issuer: "a@b", key_id: None, scope: "s", audience: "https://t", at: WallTime(1), lifetime_s: 3600 };
        for pem in ["marked", "-----BEGIN PRIVATE KEY-----\nbWFya2Vk\n-----END PRIVATE KEY-----\n"] {
            let error = assertion(&grant, &Secret::new(pem)).unwrap_err();
            assert!(error.kind() == Kind::Usage && !error.to_string().contains("marked"), "{error}");
        }
    }

    #[test]
    fn a_grant_says_who_what_and_until_when() {
        // A PKCS #8 key made for this test.
        let made = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let der = aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&made).unwrap();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            crate::base64::encode(der.as_ref())
        );
        let grant = Grant {
            issuer: "a@b",
            key_id: Some("k1"),
            scope: "s",
            audience: "https://t",
            at: WallTime(100),
            lifetime_s: 3600,
        };
        let token = assertion(&grant, &Secret::new(pem)).unwrap();
        let parts: Vec<&str> = token.expose().split('.').collect();
        assert_eq!(parts.len(), 3);
        let public = RsaKeyPair::from_pkcs8(der.as_ref()).unwrap().public_key().as_ref().to_vec();
        let said = format!("{}.{}", parts[0], parts[1]);
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
        public.verify(said.as_bytes(), &bytes(parts[2])).expect("it is signed with this key");
        let read = |part: &str| serde_json::from_slice::<serde_json::Value>(&bytes(part)).unwrap();
        assert_eq!(read(parts[0]), json!({ "alg": "RS256", "typ": "JWT", "kid": "k1" }));
        let claims = json!({ "iss": "a@b", "scope": "s", "aud": "https://t", "iat": 100, "exp": 3700 });
        assert_eq!(read(parts[1]), claims);
    }
}
