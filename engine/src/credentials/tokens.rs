//! Credentials that are bearer tokens, mostly (RFC 6749), and the chains that bring them: Azure's (account key, shared access signature,
//! service principal, workload identity, managed identity) and Google's (a key file, the user's own, the metadata server).
//!
//! Interoperability (HMAC) keys of Google need none of it: `storage.googleapis.com` takes AWS's signatures (AWS4-HMAC-SHA256, also with
//! `x-amz-` headers), so such a key is used as an AWS one against that endpoint. Google's own GOOG4 names the same
//! algorithm anew and brings nothing besides.

use super::source::{FORM, Fetched, PATIENCE, Source, first, form, token_file, token_service};
use crate::client::Answer;
use crate::environment::Environment;
use crate::service::Service;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_io::wall_now;
use fuelrail_wire::Endpoint;
use fuelrail_wire::sign::{Credential, Grant, Secret, assertion};
use futures_util::FutureExt;
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;
use std::path::Path;
use zeroize::Zeroizing;

#[derive(Deserialize)]
struct Token {
    access_token: Option<Secret>,
    expires_in: Option<Value>,
    expires_on: Option<Value>,
    error: Option<String>,
}

/// A number, or one in quotes.
fn seconds(value: Option<Value>) -> Option<u64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

/// The token in an answer. Nothing of one that has none is repeated but its status and its error's name.
pub(super) fn token_in(answer: &Answer, make: impl FnOnce(&str) -> Result<Credential>) -> Result<Fetched> {
    let token: Option<Token> = serde_json::from_slice(&answer.body).ok();
    let Some(Token { access_token: Some(text), expires_in, expires_on, .. }) = token else {
        let name = token.and_then(|token| token.error).unwrap_or_default();
        let name: String = name.chars().take(64).filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        return Err(Error::new(
            Kind::Denied,
            format!("the {} response contains no token ({name})", answer.status.as_str()),
        ));
    };
    let on = seconds(expires_on).map(WallTime);
    let now = answer.date().unwrap_or_else(wall_now);
    let expires = on.or(seconds(expires_in).map(|lasts| WallTime(now.0.saturating_add(lasts))));
    let credential = make(text.expose())?.until(expires);
    Ok(Fetched { at: answer.date(), ..Fetched::new(credential) })
}

/// The token of a metadata service. A service at its default address may be absent: the error text is then the reason there is no
/// token.
async fn token_beside(
    uri: &str,
    header: (&'static str, &str),
    named: bool,
    make: impl FnOnce(&str) -> Result<Credential>,
) -> Result<Source> {
    let patience = if named { PATIENCE } else { Duration::from_secs(1) };
    let service = Service { uri, patience, attempts: 3, ..Service::default() };
    match service.ask(Method::GET, &[header], String::new()).await {
        Err(error) if !named => Ok(Err(error.cause().to_owned())),
        answer => token_in(&answer?, make).map(Ok),
    }
}

const RESOURCE: &str = "https://storage.azure.com/";

/// The account that a bucket is of: named in the path on a server of many, in the host elsewhere.
pub(super) fn account_of(endpoint: &Endpoint) -> Option<String> {
    if !endpoint.base.is_empty() {
        return endpoint.base.rsplit('/').next().map(String::from);
    }
    let named = endpoint.host.split_once('.').filter(|_| endpoint.host.parse::<IpAddr>().is_err());
    named.map(|(account, _)| account.to_string())
}

/// One walk along the chain, for this account.
pub(super) async fn azure(environment: &Environment, account: Option<&str>) -> Result<Fetched> {
    first([
        ("account key", async { account_key(environment, account) }.boxed_local()),
        ("shared access signature", async { signature(environment) }.boxed_local()),
        ("Entra ID", principal(environment).boxed_local()),
        ("managed identity", managed(environment).boxed_local()),
    ])
    .await
}

fn account_key(environment: &Environment, account: Option<&str>) -> Result<Source> {
    let key = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"].into_iter().find_map(|name| environment.get(name));
    let Some(key) = key else { return Ok(Err("AZURE_STORAGE_KEY is not set".into())) };
    // A key that the environment ties to one account is no other one's.
    let tied = environment.first(["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"]);
    let account = match (account, tied) {
        (Some(account), Some(tied)) if account != tied => {
            return Ok(Err(format!("AZURE_STORAGE_KEY belongs to the account '{tied}', not to '{account}'")));
        }
        (Some(account), _) => account.to_string(),
        (None, Some(tied)) => tied,
        (None, None) => {
            return Err(Error::new(Kind::Usage, "AZURE_STORAGE_KEY is set without the name of its account")
                .with_hint("set AZURE_STORAGE_ACCOUNT"));
        }
    };
    Ok(Ok(Fetched { fixed: true, ..Fetched::new(Credential::azure_key(&account, &key)?) }))
}

fn signature(environment: &Environment) -> Result<Source> {
    let Some(query) = environment.get("AZURE_STORAGE_SAS_TOKEN") else {
        return Ok(Err("AZURE_STORAGE_SAS_TOKEN is not set".into()));
    };
    Ok(Ok(Fetched { fixed: true, ..Fetched::new(Credential::azure_sas(&query)?) }))
}

/// A service principal, by its secret or by a token that the platform keeps in a file.
async fn principal(environment: &Environment) -> Result<Source> {
    let (Some(tenant), Some(client)) = (environment.plain("AZURE_TENANT_ID"), environment.plain("AZURE_CLIENT_ID"))
    else {
        return Ok(Err("AZURE_TENANT_ID and AZURE_CLIENT_ID are not both set".into()));
    };
    let scope = format!("{RESOURCE}.default");
    let mut pairs =
        vec![("grant_type", "client_credentials"), ("client_id", client.as_str()), ("scope", scope.as_str())];
    let (secret, file) = (environment.get("AZURE_CLIENT_SECRET"), environment.path("AZURE_FEDERATED_TOKEN_FILE"));
    let token: Zeroizing<String>;
    match (&secret, file) {
        (Some(secret), _) => pairs.push(("client_secret", secret.as_str())),
        (None, Some(file)) => {
            token = token_file(&file)?;
            pairs.push(("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"));
            pairs.push(("client_assertion", token.as_str()));
        }
        (None, None) => {
            return Ok(Err("neither AZURE_CLIENT_SECRET nor AZURE_FEDERATED_TOKEN_FILE is set".into()));
        }
    }
    let service =
        environment.plain("AZURE_AUTHORITY_HOST").unwrap_or_else(|| "https://login.microsoftonline.com".into());
    let uri = format!("{}/{tenant}/oauth2/v2.0/token", service.trim_end_matches('/'));
    let answer = token_service(&uri, environment).ask(Method::POST, &[("content-type", FORM)], form(&pairs)).await?;
    token_in(&answer, Credential::azure_bearer).map(Ok)
}

/// The identity of the machine or of the application service.
async fn managed(environment: &Environment) -> Result<Source> {
    let client = environment.plain("AZURE_CLIENT_ID").map_or(String::new(), |id| format!("&client_id={id}"));
    let (uri, header, named) = match (environment.plain("IDENTITY_ENDPOINT"), environment.get("IDENTITY_HEADER")) {
        (Some(uri), Some(header)) => {
            let uri = format!("{uri}?api-version=2019-08-01&resource={RESOURCE}{client}");
            (uri, ("x-identity-header", header), true)
        }
        _ => {
            let named = environment.plain("AZURE_POD_IDENTITY_AUTHORITY_HOST");
            let service = named.as_deref().unwrap_or("http://169.254.169.254").trim_end_matches('/');
            let path = format!("/metadata/identity/oauth2/token?api-version=2018-02-01&resource={RESOURCE}{client}");
            (format!("{service}{path}"), ("metadata", Zeroizing::new("true".to_owned())), named.is_some())
        }
    };
    let (name, value) = header;
    token_beside(&uri, (name, &value), named, Credential::azure_bearer).await
}

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const LIFETIME_S: u64 = 3600;

/// One walk along the chain.
pub(super) async fn google(environment: &Environment) -> Result<Fetched> {
    const USUAL: &str = "application_default_credentials.json";
    let named = async {
        match environment.path("GOOGLE_APPLICATION_CREDENTIALS") {
            Some(path) => from_file(environment, &path, true).await,
            None => Ok(Err("GOOGLE_APPLICATION_CREDENTIALS is not set".into())),
        }
    };
    let own = async {
        let folder = environment.path("CLOUDSDK_CONFIG").or_else(|| environment.at_home(".config/gcloud"));
        match folder.map(|folder| folder.join(USUAL)) {
            Some(path) => from_file(environment, &path, false).await,
            None => Ok(Err("HOME is not set".into())),
        }
    };
    let metadata = from_metadata(environment);
    first([
        ("key file", named.boxed_local()),
        ("gcloud", own.boxed_local()),
        ("metadata server", metadata.boxed_local()),
    ])
    .await
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
            return Ok(Err(format!("{} does not exist", path.display())));
        }
        Err(e) => return Err(Error::from_io(Kind::File, path.display(), e)),
    };
    let (uri, body) = exchange(&text, wall_now()).map_err(|e| e.within(path.display()))?;
    let answer = token_service(&uri, environment).ask(Method::POST, &[("content-type", FORM)], body).await?;
    token_in(&answer, Credential::bearer).map(Ok)
}

/// Where a key file says that a token is to be had, and what is sent there for one.
pub(super) fn exchange(text: &[u8], at: WallTime) -> Result<(String, String)> {
    let wrong = |why: String| Error::new(Kind::Usage, why);
    let file: KeyFile = serde_json::from_slice(text)
        .map_err(|e| wrong(format!("not a JSON credentials document (line {})", e.line())))?;
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
            return Err(wrong(format!("a field of the '{kind}' is missing")));
        }
        (kind, _) => {
            let kind: String = kind.chars().take(64).collect();
            return Err(wrong(format!("its type '{}' is not supported", kind.escape_debug()))
                .with_hint("use the key file of a service account, or gcloud auth application-default login"));
        }
    };
    Ok((uri.to_owned(), body))
}

async fn from_metadata(environment: &Environment) -> Result<Source> {
    let named = environment.plain("GCE_METADATA_HOST");
    let host = named.as_deref().unwrap_or("metadata.google.internal");
    let uri = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
    token_beside(&uri, ("metadata-flavor", "Google"), named.is_some(), Credential::bearer).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::Cloud;
    use hyper::StatusCode;
    use hyper::body::Bytes;
    use hyper::header::{DATE, HeaderMap, HeaderValue};

    #[test]
    fn the_account_is_the_uris_and_a_key_of_another_one_is_not_its() {
        let found = |variables: &[(&str, &str)], account| {
            let given = Environment::given(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
            account_key(&given, account)
        };
        let (key, tied) = (("AZURE_STORAGE_KEY", "a2V5"), ("AZURE_STORAGE_ACCOUNT", "acc"));
        for (variables, account) in [(&[key][..], Some("acc")), (&[key, tied], Some("acc")), (&[key, tied], None)] {
            let Ok(Ok(fetched)) = found(variables, account) else { panic!("{account:?}") };
            assert_eq!(fetched.credential, Credential::azure_key("acc", "a2V5").unwrap());
        }
        assert!(found(&[key], None).unwrap_err().to_string().contains("AZURE_STORAGE_ACCOUNT"));
        assert!(matches!(found(&[key, tied], Some("other")), Ok(Err(_))));
        assert!(matches!(found(&[], Some("acc")), Ok(Err(_))));
        for (uri, account) in [
            ("az://acc/container/", Some("acc")),
            ("https://acc.blob.core.windows.net/container/", Some("acc")),
            ("http://127.0.0.1:10000/container/", None),
        ] {
            assert_eq!(account_of(&uri.parse().unwrap()).as_deref(), account, "{uri}");
        }
        let azurite = Cloud { endpoint: "http://127.0.0.1:10000".into(), ..Cloud::default() };
        assert_eq!(account_of(&azurite.endpoint("az://devstore/set/").unwrap()).as_deref(), Some("devstore"));
    }

    #[test]
    fn tokens_are_read_with_their_end_and_refusals_repeat_no_secret() {
        let answer = |body: &'static str| Answer {
            status: StatusCode::OK,
            headers: HeaderMap::from_iter([(DATE, HeaderValue::from_static("Thu, 01 Jan 1970 00:16:40 GMT"))]),
            body: Bytes::from_static(body.as_bytes()),
        };
        for (body, expires) in [
            (r#"{"access_token":"tok","expires_in":3599,"token_type":"Bearer"}"#, Some(4_599)),
            (r#"{"access_token":"tok","expires_in":"3599","expires_on":"7000"}"#, Some(7_000)),
            (r#"{"access_token":"tok"}"#, None),
        ] {
            let fetched = token_in(&answer(body), Credential::azure_bearer).unwrap();
            assert_eq!(
                fetched.credential,
                Credential::azure_bearer("tok").unwrap().until(expires.map(WallTime)),
                "{body}"
            );
        }
        for body in [r#"{"error":"invalid_client","error_description":"marked"}"#, "marked", "{}"] {
            let error = token_in(&answer(body), Credential::azure_bearer).unwrap_err();
            assert!(error.kind() == Kind::Denied && !error.to_string().contains("marked"), "{error}");
        }
    }
}
