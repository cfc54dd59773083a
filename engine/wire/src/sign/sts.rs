//! Temporary credentials as AWS hands them out: the XML of its Security Token Service, the JSON of everything else.

use super::credential::{Credential, Secret};
use crate::date;
use crate::xml::{Visit, printable, walk};
use fuelrail_base::{Error, Kind, Result};
use serde::Deserialize;
use zeroize::Zeroizing;

/// What was found of a credential so far.
#[derive(Default)]
struct Session {
    id: Option<Zeroizing<String>>,
    secret: Option<Zeroizing<String>>,
    token: Option<Zeroizing<String>>,
    expires: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

impl Visit for Session {
    fn close(&mut self, path: &str, text: &str) -> Result<()> {
        let secret = || Some(Zeroizing::new(text.trim().to_owned()));
        match path.rsplit_once('/').and_then(|(rest, name)| Some((rest.rsplit('/').next()?, name))) {
            Some(("Credentials", "AccessKeyId")) => self.id = secret(),
            Some(("Credentials", "SecretAccessKey")) => self.secret = secret(),
            Some(("Credentials", "SessionToken")) => self.token = secret(),
            Some(("Credentials", "Expiration")) => self.expires = Some(text.trim().into()),
            Some(("Error", "Code")) => self.code = Some(printable(text)),
            Some(("Error", "Message")) => self.message = Some(printable(text)),
            _ => {}
        }
        Ok(())
    }
}

/// The credential in an answer of the Security Token Service.
///
/// # Errors
/// [`Kind::Denied`] with what the service says, [`Kind::Protocol`] when it is no such answer. Nothing secret is repeated.
pub fn parse_session(xml: &[u8]) -> Result<Credential> {
    let mut session = Session::default();
    walk(xml, &mut session)?;
    if let Some(code) = session.code {
        let message = session.message.map_or(String::new(), |message| format!(": {message}"));
        return Err(Error::new(Kind::Denied, format!("{code}{message}")));
    }
    let (Some(id), Some(secret)) = (session.id, session.secret) else {
        return Err(Error::new(Kind::Protocol, "the answer holds no credentials"));
    };
    dated(Credential::aws(&id, &secret, session.token.as_deref().map(String::as_str))?, session.expires.as_deref())
}

/// As the metadata service, container agents and credential processes write it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    message: Option<String>,
    access_key_id: Option<Secret>,
    secret_access_key: Option<Secret>,
    #[serde(alias = "SessionToken")]
    token: Option<Secret>,
    expiration: Option<String>,
}

/// The credential in a JSON document of the metadata service, a container's agent or a credential process.
///
/// # Errors
/// As [`parse_session`].
pub fn parse_keys(json: &[u8]) -> Result<Credential> {
    let written: Written = serde_json::from_slice(json).map_err(|flaw| {
        Error::new(Kind::Protocol, format!("the answer is no JSON of credentials (line {})", flaw.line()))
    })?;
    if let (Some(code), None) = (written.code.as_deref().filter(|code| *code != "Success"), &written.access_key_id) {
        let message = written.message.as_deref().map_or(String::new(), |message| format!(": {}", printable(message)));
        return Err(Error::new(Kind::Denied, format!("{}{message}", printable(code))));
    }
    let (Some(id), Some(secret)) = (&written.access_key_id, &written.secret_access_key) else {
        return Err(Error::new(Kind::Protocol, "the answer holds no credentials"));
    };
    let token = written.token.as_ref().map(Secret::expose).filter(|token| !token.is_empty());
    dated(Credential::aws(id.expose(), secret.expose(), token)?, written.expiration.as_deref())
}

fn dated(credential: Credential, expires: Option<&str>) -> Result<Credential> {
    let Some(text) = expires else { return Ok(credential) };
    let expires = date::parse_iso(text).ok_or_else(|| Error::new(Kind::Protocol, "their expiry is no date"))?;
    Ok(credential.until(Some(expires)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::WallTime;

    fn wanted(token: Option<&str>) -> Credential {
        Credential::aws("ASIAEXAMPLE", "wJal/x", token).unwrap().until(Some(WallTime(1_369_353_600)))
    }

    #[test]
    fn answers_of_the_token_service() {
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
    fn answers_in_json() {
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
}
