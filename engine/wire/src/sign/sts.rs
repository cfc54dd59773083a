//! Parses responses about credentials: temporary keys from AWS (XML from its Security Token Service, JSON from everything else), and error
//! codes of buckets that refuse a request.

use super::credential::{Credential, Secret};
use crate::date;
use crate::xml::{Visit, printable, walk};
use fuelrail_base::{Error, Kind, Result};
use serde::Deserialize;

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
#[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;
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
}
