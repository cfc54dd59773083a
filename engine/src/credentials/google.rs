//! The chain of Google: a key file, the user's own, the metadata server.
//!
//! Interoperability (HMAC) keys need none of it: `storage.googleapis.com` takes AWS's signatures (AWS4-HMAC-SHA256, also with
//! `x-amz-` headers), so such a key is used as an AWS one against that endpoint. Google's own GOOG4 names the same
//! algorithm anew and brings nothing besides.

use super::chain::{Fetched, Source, Walk};
use super::environment::Environment;
use super::http::{Ask, ask, form};
use super::oauth::token_in;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_io::wall_now;
use fuelrail_wire::sign::{Credential, Grant, Secret, assertion};
use serde::Deserialize;
use std::path::Path;
use zeroize::Zeroizing;

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const LIFETIME_S: u64 = 3600;
const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 3;

/// One walk along the chain.
///
/// # Errors
/// What every source had to say, when none has a credential or one does not work.
pub(super) async fn fetch(environment: &Environment) -> Result<Fetched> {
    let mut walk = Walk::default();
    let named = match environment.path("GOOGLE_APPLICATION_CREDENTIALS") {
        Some(path) => from_file(environment, &path, true).await,
        None => Ok(Source::Nothing("GOOGLE_APPLICATION_CREDENTIALS is not set".into())),
    };
    if let Some(fetched) = walk.take("key file", named)? {
        return Ok(fetched);
    }
    const USUAL: &str = "application_default_credentials.json";
    let folder = environment.path("CLOUDSDK_CONFIG").or_else(|| environment.at_home(".config/gcloud"));
    let own = match folder.map(|folder| folder.join(USUAL)) {
        Some(path) => from_file(environment, &path, false).await,
        None => Ok(Source::Nothing("HOME is not set".into())),
    };
    if let Some(fetched) = walk.take("gcloud", own)? {
        return Ok(fetched);
    }
    if let Some(fetched) = walk.take("metadata server", from_metadata(environment).await)? {
        return Ok(fetched);
    }
    Err(walk.empty())
}

/// A file of credentials. What else is in it does not matter.
#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "type")]
    kind: String,
    client_email: Option<String>,
    private_key: Option<Secret>,
    private_key_id: Option<String>,
    token_uri: Option<String>,
    client_id: Option<String>,
    client_secret: Option<Secret>,
    refresh_token: Option<Secret>,
}

async fn from_file(environment: &Environment, path: &Path, named: bool) -> Result<Source> {
    let text = match std::fs::read(path) {
        Ok(text) => Zeroizing::new(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !named => {
            return Ok(Source::Nothing(format!("{} is not there", path.display())));
        }
        Err(e) => return Err(Error::new(Kind::File, format!("{}: {e}", path.display()))),
    };
    let (uri, body) = exchange(&text, wall_now()).map_err(|e| {
        let cause = format!("{}: {}", path.display(), e.cause());
        e.because(cause)
    })?;
    let headers = vec![("content-type".to_string(), "application/x-www-form-urlencoded".to_string())];
    let (uri, proxies) = (&uri, Some(environment));
    let asked = Ask { method: "POST", uri, headers, body, patience: PATIENCE, attempts: ATTEMPTS, proxies };
    token_in(&ask(asked, None).await?, Credential::bearer).map(Source::Found)
}

/// Where a key file says that a token is to be had, and what is sent there for one.
///
/// # Errors
/// `Usage` when a part of the file is missing or not understood.
pub(super) fn exchange(text: &[u8], at: WallTime) -> Result<(String, String)> {
    let wrong = |why: String| Error::new(Kind::Usage, why);
    let file: KeyFile =
        serde_json::from_slice(text).map_err(|e| wrong(format!("it is no JSON of credentials (line {})", e.line())))?;
    let uri = file.token_uri.as_deref().unwrap_or(TOKEN_URI);
    let body = match (file.kind.as_str(), &file) {
        ("service_account", KeyFile { client_email: Some(email), private_key: Some(key), private_key_id, .. }) => {
            let key_id = private_key_id.as_deref();
            let grant = Grant { issuer: email, key_id, scope: SCOPE, audience: uri, at, lifetime_s: LIFETIME_S };
            let assertion = assertion(&grant, key)?;
            form(&[("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", assertion.expose())])
        }
        (
            "authorized_user",
            KeyFile { client_id: Some(id), client_secret: Some(secret), refresh_token: Some(token), .. },
        ) => form(&[
            ("grant_type", "refresh_token"),
            ("client_id", id),
            ("client_secret", secret.expose()),
            ("refresh_token", token.expose()),
        ]),
        (kind @ ("service_account" | "authorized_user"), _) => {
            return Err(wrong(format!("a part of its '{kind}' is missing")));
        }
        (kind, _) => {
            let kind: String = kind.chars().take(64).collect();
            return Err(wrong(format!("its type '{}' is not understood", kind.escape_debug()))
                .cure("use the key file of a service account, or gcloud auth application-default login"));
        }
    };
    Ok((uri.to_owned(), body))
}

async fn from_metadata(environment: &Environment) -> Result<Source> {
    let named = environment.plain("GCE_METADATA_HOST");
    let host = named.as_deref().unwrap_or("metadata.google.internal");
    let uri = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
    let headers = vec![("metadata-flavor".to_string(), "Google".to_string())];
    let patience = if named.is_some() { PATIENCE } else { Duration::from_secs(1) };
    let asked = Ask { method: "GET", uri: &uri, headers, patience, attempts: ATTEMPTS, ..Ask::default() };
    match ask(asked, None).await {
        Ok(answer) => token_in(&answer, Credential::bearer).map(Source::Found),
        Err(error) if named.is_none() => Ok(Source::Nothing(error.cause().to_string())),
        Err(error) => Err(error),
    }
}
