//! The chain of Azure: account key, shared access signature, service principal, workload identity, managed identity.

use super::chain::{Fetched, Source, Walk};
use super::environment::Environment;
use super::http::{Ask, ask, form};
use super::oauth::token_in;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::Endpoint;
use fuelrail_wire::sign::Credential;
use std::net::IpAddr;
use zeroize::Zeroizing;

const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 3;
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
///
/// # Errors
/// What every source had to say, when none has a credential or one does not work.
pub(super) async fn fetch(environment: &Environment, account: Option<&str>) -> Result<Fetched> {
    let mut walk = Walk::default();
    if let Some(fetched) = walk.take("account key", account_key(environment, account))? {
        return Ok(fetched);
    }
    if let Some(fetched) = walk.take("shared access signature", signature(environment))? {
        return Ok(fetched);
    }
    if let Some(fetched) = walk.take("Entra ID", principal(environment).await)? {
        return Ok(fetched);
    }
    if let Some(fetched) = walk.take("managed identity", managed(environment).await)? {
        return Ok(fetched);
    }
    Err(walk.empty())
}

fn account_key(environment: &Environment, account: Option<&str>) -> Result<Source> {
    let key = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"].into_iter().find_map(|name| environment.get(name));
    let Some(key) = key else { return Ok(Source::Nothing("AZURE_STORAGE_KEY is not set".into())) };
    // A key that the environment ties to one account is no other one's.
    let tied =
        ["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"].into_iter().find_map(|name| environment.plain(name));
    let account = match (account, tied) {
        (Some(account), Some(tied)) if account != tied => {
            return Ok(Source::Nothing(format!("AZURE_STORAGE_KEY is of the account '{tied}', not of '{account}'")));
        }
        (Some(account), _) => account.to_string(),
        (None, Some(tied)) => tied,
        (None, None) => {
            return Err(Error::new(Kind::Usage, "AZURE_STORAGE_KEY is set, and nothing names its account")
                .cure("set AZURE_STORAGE_ACCOUNT"));
        }
    };
    Ok(Source::Found(Fetched { fixed: true, ..Fetched::new(Credential::azure_key(&account, &key)?) }))
}

fn signature(environment: &Environment) -> Result<Source> {
    let Some(query) = environment.get("AZURE_STORAGE_SAS_TOKEN") else {
        return Ok(Source::Nothing("AZURE_STORAGE_SAS_TOKEN is not set".into()));
    };
    Ok(Source::Found(Fetched { fixed: true, ..Fetched::new(Credential::azure_sas(&query)?) }))
}

/// A service principal, by its secret or by a token that the platform keeps in a file.
async fn principal(environment: &Environment) -> Result<Source> {
    let (Some(tenant), Some(client)) = (environment.plain("AZURE_TENANT_ID"), environment.plain("AZURE_CLIENT_ID"))
    else {
        return Ok(Source::Nothing("AZURE_TENANT_ID and AZURE_CLIENT_ID are not both set".into()));
    };
    let scope = format!("{RESOURCE}.default");
    let mut pairs =
        vec![("grant_type", "client_credentials"), ("client_id", client.as_str()), ("scope", scope.as_str())];
    let (secret, file) = (environment.get("AZURE_CLIENT_SECRET"), environment.path("AZURE_FEDERATED_TOKEN_FILE"));
    let token: Zeroizing<String>;
    match (&secret, file) {
        (Some(secret), _) => pairs.push(("client_secret", secret.as_str())),
        (None, Some(file)) => {
            // Read anew each time: it is replaced while it is valid.
            let text = std::fs::read_to_string(&file);
            let text = text.map_err(|e| Error::new(Kind::File, format!("the token file {}: {e}", file.display())))?;
            token = Zeroizing::new(text.trim().to_string());
            pairs.push(("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"));
            pairs.push(("client_assertion", token.as_str()));
        }
        (None, None) => {
            return Ok(Source::Nothing("neither AZURE_CLIENT_SECRET nor AZURE_FEDERATED_TOKEN_FILE is set".into()));
        }
    }
    let service =
        environment.plain("AZURE_AUTHORITY_HOST").unwrap_or_else(|| "https://login.microsoftonline.com".into());
    let uri = format!("{}/{tenant}/oauth2/v2.0/token", service.trim_end_matches('/'));
    let headers = vec![("content-type".to_string(), "application/x-www-form-urlencoded".to_string())];
    let asked = Ask {
        method: "POST",
        uri: &uri,
        headers,
        body: form(&pairs),
        patience: PATIENCE,
        attempts: ATTEMPTS,
        proxies: Some(environment),
    };
    token_in(&ask(asked, None).await?, Credential::azure_bearer).map(Source::Found)
}

/// The identity of the machine or of the application service.
async fn managed(environment: &Environment) -> Result<Source> {
    let client = environment.plain("AZURE_CLIENT_ID").map_or(String::new(), |id| format!("&client_id={id}"));
    let (uri, header, named) = match (environment.plain("IDENTITY_ENDPOINT"), environment.get("IDENTITY_HEADER")) {
        (Some(uri), Some(header)) => {
            let uri = format!("{uri}?api-version=2019-08-01&resource={RESOURCE}{client}");
            (uri, ("x-identity-header".to_string(), header.to_string()), true)
        }
        _ => {
            let named = environment.plain("AZURE_POD_IDENTITY_AUTHORITY_HOST");
            let service = named.as_deref().unwrap_or("http://169.254.169.254").trim_end_matches('/');
            let path = format!("/metadata/identity/oauth2/token?api-version=2018-02-01&resource={RESOURCE}{client}");
            (format!("{service}{path}"), ("metadata".to_string(), "true".to_string()), named.is_some())
        }
    };
    let patience = if named { PATIENCE } else { Duration::from_secs(1) };
    let asked = Ask { method: "GET", uri: &uri, headers: vec![header], patience, attempts: ATTEMPTS, ..Ask::default() };
    match ask(asked, None).await {
        Ok(answer) => token_in(&answer, Credential::azure_bearer).map(Source::Found),
        Err(error) if !named => Ok(Source::Nothing(error.cause().to_string())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::Cloud;

    #[test]
    fn the_account_is_the_uris_and_a_key_of_another_one_is_not_its() {
        let found = |variables: &[(&str, &str)], account| {
            let given = Environment::given(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
            account_key(&given, account)
        };
        let (key, tied) = (("AZURE_STORAGE_KEY", "a2V5"), ("AZURE_STORAGE_ACCOUNT", "acc"));
        for (variables, account) in [(&[key][..], Some("acc")), (&[key, tied], Some("acc")), (&[key, tied], None)] {
            let Ok(Source::Found(fetched)) = found(variables, account) else { panic!("{account:?}") };
            assert_eq!(fetched.credential, Credential::azure_key("acc", "a2V5").unwrap());
        }
        assert!(found(&[key], None).unwrap_err().to_string().contains("AZURE_STORAGE_ACCOUNT"));
        assert!(matches!(found(&[key, tied], Some("other")), Ok(Source::Nothing(_))));
        assert!(matches!(found(&[], Some("acc")), Ok(Source::Nothing(_))));
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
}
