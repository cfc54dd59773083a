//! Credentials and their expiry. Secrets print as `(secret)` and are wiped when dropped.

use arrayvec::ArrayVec;
use core::fmt;
use fuelrail_base::{Error, Kind, Result, WallTime};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use zeroize::Zeroizing;

/// A text that is never printed, and wiped from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps `text` from being printed.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// The text itself: for hashing, and for the request it authorises.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> core::result::Result<Secret, D::Error> {
        <String as serde::Deserialize>::deserialize(deserializer).map(Secret::new)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The kinds of credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// None: requests are unsigned.
    Anonymous,
    /// AWS: an access key, and the token of a session where it is a temporary one.
    Aws { id: Secret, secret: Secret, token: Option<Secret> },
    /// A bearer token (RFC 6750).
    Bearer { token: Secret },
    /// A bearer token for Azure, which also requires a version header.
    AzureBearer { token: Secret },
    /// Azure: the key of a storage account.
    AzureKey { account: String, key: Secret },
    /// Azure: a query that carries its own signature.
    AzureSas { query: Secret },
}

/// A credential and its expiry. `Debug` prints no secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credential {
    pub(super) proof: Proof,
    expires: Option<WallTime>,
}

impl Credential {
    /// No credential: requests are unsigned.
    #[must_use]
    pub fn anonymous() -> Credential {
        Credential { proof: Proof::Anonymous, expires: None }
    }

    /// An access key of AWS or of what speaks like it, with the token of its session if it is a temporary one.
    ///
    /// # Errors
    /// [`Kind::Usage`] when a part is empty or cannot stand in a header line.
    pub fn aws(id: &str, secret: &str, token: Option<&str>) -> Result<Credential> {
        sound("the access key id", id)?;
        sound("the secret access key", secret)?;
        if let Some(token) = token {
            sound("the session token", token)?;
        }
        Ok(Credential::of(Proof::Aws {
            id: Secret::new(id),
            secret: Secret::new(secret),
            token: token.map(Secret::new),
        }))
    }

    /// A bearer token, as Google's.
    ///
    /// # Errors
    /// As [`Credential::aws`].
    pub fn bearer(token: &str) -> Result<Credential> {
        sound("the access token", token)?;
        Ok(Credential::of(Proof::Bearer { token: Secret::new(token) }))
    }

    /// A bearer token of Azure.
    ///
    /// # Errors
    /// As [`Credential::aws`].
    pub fn azure_bearer(token: &str) -> Result<Credential> {
        sound("the access token", token)?;
        Ok(Credential::of(Proof::AzureBearer { token: Secret::new(token) }))
    }

    /// The key of an Azure storage account, in Base64 as the portal shows it.
    ///
    /// # Errors
    /// As [`Credential::aws`]; also when the key is not Base64.
    pub fn azure_key(account: &str, key: &str) -> Result<Credential> {
        sound("the storage account's name", account)?;
        if key.is_empty() || crate::base64::decode(key.as_bytes()).is_none() {
            return Err(
                Error::new(Kind::Usage, "the storage account's key is not Base64").with_hint("copy the whole of it")
            );
        }
        Ok(Credential::of(Proof::AzureKey { account: account.into(), key: Secret::new(key) }))
    }

    /// A shared access signature of Azure: a query, with or without its question mark.
    ///
    /// # Errors
    /// As [`Credential::aws`]; also when it has no signature.
    pub fn azure_sas(query: &str) -> Result<Credential> {
        let query = query.strip_prefix('?').unwrap_or(query);
        sound("the shared access signature", query)?;
        if !query.split('&').any(|pair| pair.starts_with("sig=")) {
            return Err(Error::new(Kind::Usage, "the shared access signature has no 'sig' parameter")
                .with_hint("give everything after the '?'"));
        }
        Ok(Credential::of(Proof::AzureSas { query: Secret::new(query) }))
    }

    fn of(proof: Proof) -> Credential {
        Credential { proof, expires: None }
    }

    /// The same credential with this expiry.
    #[must_use]
    pub fn until(self, expires: Option<WallTime>) -> Credential {
        Credential { expires, ..self }
    }

    /// When it expires; `None` if unknown or never.
    #[must_use]
    pub fn expires(&self) -> Option<WallTime> {
        self.expires
    }

    /// The part of a foreign text before the first secret of this credential, as sent or decoded; all of it if there is none. Servers
    /// echo requests in error documents, and truncate them anywhere.
    #[must_use]
    pub fn spared<'a>(&self, text: &'a str) -> &'a str {
        let secrets: ArrayVec<&Secret, 2> = match &self.proof {
            Proof::Anonymous => ArrayVec::new(),
            Proof::Aws { secret, token, .. } => [secret].into_iter().chain(token).collect(),
            Proof::Bearer { token } | Proof::AzureBearer { token } => [token].into_iter().collect(),
            Proof::AzureKey { key, .. } => [key].into_iter().collect(),
            Proof::AzureSas { query } => {
                let signature = query.expose().split('&').find_map(|pair| pair.strip_prefix("sig="));
                return spare(text, signature.unwrap_or_default());
            }
        };
        secrets.into_iter().fold(text, |text, secret| spare(text, secret.expose()))
    }

    /// Whether requests go unsigned.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.proof == Proof::Anonymous
    }
}

/// A match of so many characters counts as a secret.
const START_CHARS: usize = 6;

/// What stands before the start of a secret.
pub(crate) fn spare<'a>(text: &'a str, secret: &str) -> &'a str {
    let decoded = percent_decode_str(secret).decode_utf8_lossy();
    let escaped = utf8_percent_encode(&decoded, NON_ALPHANUMERIC).to_string();
    let forms = [secret, &decoded, &escaped].map(|form| form.chars().take(START_CHARS).collect::<String>());
    let found = forms.iter().filter(|start| !start.is_empty()).filter_map(|start| text.find(start.as_str()));
    &text[..found.min().unwrap_or(text.len())]
}

/// Nothing empty, and nothing that could end a header line. The text is not repeated.
fn sound(what: &str, text: &str) -> Result<()> {
    if !text.is_empty() && text.bytes().all(|byte| (0x21..=0x7E).contains(&byte)) {
        return Ok(());
    }
    let flaw = if text.is_empty() { "is empty" } else { "contains a space, a control or a non-ASCII character" };
    Err(Error::new(Kind::Usage, format!("{what} {flaw}"))
        .with_hint("check how it was copied: it may include a line break or quotes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_credential_is_printed() {
        let key = crate::base64::encode(b"marked-key");
        let all = [
            Credential::aws("marked-id", "marked-secret", Some("marked-token")),
            Credential::bearer("marked-bearer"),
            Credential::azure_bearer("marked-bearer"),
            Credential::azure_key("account", &key),
            Credential::azure_sas("?sv=2022-11-02&sig=marked"),
        ];
        for credential in all {
            let text = format!("{:?} {:#?}", credential, credential.as_ref().unwrap());
            assert!(!text.contains("marked") && !text.contains(&key), "{text}");
            assert!(!credential.unwrap().is_anonymous());
        }
        assert!(Credential::anonymous().is_anonymous());
        assert_eq!(Secret::new("marked").to_string(), "(secret)");
    }

    #[test]
    fn what_repeats_a_secret_is_cut_before_it() {
        let key = crate::base64::encode(b"an-accounts-key");
        let all = [
            (Credential::aws("id", "marked-secret", None), "marked-secret"),
            (Credential::aws("id", "secret", Some("marked/token+=")), "marked/token+="),
            (Credential::aws("id", "secret", Some("marked/token+=")), "marked%2Ftoken"),
            (Credential::bearer("marked-bearer"), "marked-"),
            (Credential::azure_bearer("marked-bearer"), "marked-bearer"),
            (Credential::azure_key("account", &key), &key),
            (Credential::azure_sas("?sv=1&sig=ma%2Brked%3D&sp=r"), "ma%2Brked%3D"),
            (Credential::azure_sas("sv=1&sig=ma%2Brked%3D"), "ma+rked="),
        ];
        for (credential, secret) in all {
            let credential = credential.unwrap();
            assert_eq!(credential.spared(&format!("GET /k?{secret} é")), "GET /k?", "{secret}");
            assert_eq!(
                credential.spared("the access key id 'id' is unknown: é"),
                "the access key id 'id' is unknown: é"
            );
        }
        assert_eq!(Credential::anonymous().spared("anything"), "anything");
    }

    #[test]
    fn what_cannot_stand_in_a_header_is_refused_and_not_repeated() {
        for refused in [
            Credential::aws("", "secret", None),
            Credential::aws("id", "marked\n", None),
            Credential::aws("id", "secret", Some("marked\r\nX: y")),
            Credential::bearer("marked token"),
            Credential::azure_key("account", "marked"),
            Credential::azure_key("account", ""),
            Credential::azure_sas("?sv=marked"),
            Credential::azure_sas(""),
        ] {
            let error = refused.unwrap_err();
            assert!(error.kind() == Kind::Usage && !error.to_string().contains("marked"), "{error}");
        }
    }
}
