//! Sources of AWS keys: the environment, a container's agent, an instance's metadata service, and roles from the Security Token Service.

use super::source::{FORM, Fetched, Source, form, token_file, token_service};
use crate::environment::Environment;
use crate::service::Service;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::sign::{Credential, Payload, Realm, Scope, Signer, Unsigned, parse_keys, parse_session, sha256_hex};
use fuelrail_wire::{Endpoint, Scheme};
use hyper::Method;
use std::net::IpAddr;
use std::path::Path;

/// Keys in the environment itself.
pub(super) fn from_environment(environment: &Environment) -> Result<Source> {
    let Some(id) = environment.get("AWS_ACCESS_KEY_ID") else {
        return Ok(Err("AWS_ACCESS_KEY_ID is not set".into()));
    };
    let Some(secret) = environment.get("AWS_SECRET_ACCESS_KEY") else {
        return Err(Error::new(Kind::Usage, "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY"));
    };
    let token = environment.get("AWS_SESSION_TOKEN");
    let credential = Credential::aws(&id, &secret, token.as_deref().map(String::as_str))?;
    Ok(Ok(Fetched { fixed: true, ..Fetched::new(credential) }))
}

const AGENT: &str = "http://169.254.170.2";

/// Keys from the container's agent.
pub(super) async fn container(environment: &Environment) -> Result<Source> {
    let relative = environment.plain("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{AGENT}{path}"));
    let Some(uri) = relative.or_else(|| environment.plain("AWS_CONTAINER_CREDENTIALS_FULL_URI")) else {
        return Ok(Err("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set".into()));
    };
    let endpoint: Endpoint = uri.split('?').next().unwrap_or_default().parse()?;
    if endpoint.scheme == Scheme::Http && !is_near(&endpoint.host) {
        let cause = format!("{} is neither a loopback nor a container agent's address", endpoint.host);
        return Err(
            Error::new(Kind::Usage, cause).with_hint("use an https:// URI: a token is not sent there over plain HTTP")
        );
    }
    let file = environment.path("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    let token = match file {
        Some(file) => Some(token_file(&file)?),
        None => environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    };
    let headers: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).collect();
    let ca_file = environment.path("AWS_CA_BUNDLE");
    let asked = Service { uri: &uri, patience: Duration::from_secs(5), attempts: 3, ca_file, proxies: None };
    let answer = asked.ask(Method::GET, &headers, String::new()).await?;
    if answer.status != 200 {
        return Err(Error::new(Kind::Denied, format!("{} answered {}", endpoint.authority(), answer.status.as_str())));
    }
    Ok(Ok(Fetched { at: answer.date(), ..Fetched::new(parse_keys(&answer.body)?) }))
}

/// Hosts to which AWS's tools send a token without TLS.
fn is_near(host: &str) -> bool {
    let Ok(address) = host.parse::<IpAddr>() else { return host == "localhost" };
    address.is_loopback()
        || ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"].iter().any(|a| a.parse() == Ok(address))
}

const IMDS: &str = "http://169.254.169.254";
const ROLES: &str = "latest/meta-data/iam/security-credentials/";

/// Keys of the instance's role.
pub(super) async fn instance(environment: &Environment) -> Result<Source> {
    if environment.plain("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(Err("AWS_EC2_METADATA_DISABLED is set".into()));
    }
    let named = environment.plain("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let service = named.as_deref().unwrap_or(IMDS).trim_end_matches('/');
    // The service is on the machine or not there at all.
    let ask = async |method, path: &str, header: (&'static str, &str)| {
        let uri = format!("{service}/{path}");
        let asked = Service { uri: &uri, patience: Duration::from_secs(1), attempts: 2, ..Service::default() };
        asked.ask(method, &[header], String::new()).await
    };
    let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    let token = match ask(Method::PUT, "latest/api/token", lifetime).await {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            return Ok(Err(format!("{service} answered {} instead of a session token", answer.status.as_str())));
        }
        Err(error) if named.is_none() => return Ok(Err(error.cause().to_string())),
        Err(error) => return Err(error),
    };
    let token = String::from_utf8_lossy(&token.body).trim().to_string();
    let with = ("x-aws-ec2-metadata-token", token.as_str());
    let roles = ask(Method::GET, ROLES, with).await?;
    let text = String::from_utf8_lossy(&roles.body).into_owned();
    let Some(role) = text.lines().next().map(str::trim).filter(|role| roles.status == 200 && !role.is_empty()) else {
        return Ok(Err("the instance has no role".into()));
    };
    let answer = ask(Method::GET, &format!("{ROLES}{role}"), with).await?;
    if answer.status != 200 {
        return Err(Error::new(Kind::Server, format!("{service} answered {} for its role", answer.status.as_str())));
    }
    Ok(Ok(Fetched { at: answer.date(), ..Fetched::new(parse_keys(&answer.body)?) }))
}

/// Clock differences below this are ignored.
const SKEW_S_MIN: u64 = 60;

/// The role to assume.
#[derive(Clone, Debug, Default)]
pub(super) struct Role {
    pub(super) arn: String,
    pub(super) session: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) duration_s: Option<String>,
}

/// The Security Token Service of a region.
pub(super) struct Sts<'a> {
    pub(super) environment: &'a Environment,
    pub(super) region: &'a str,
    pub(super) now: WallTime,
}

impl Sts<'_> {
    /// Assumes the role with `keys`.
    pub(super) async fn assume(&self, role: &Role, keys: &Credential) -> Result<Fetched> {
        let external_id = role.external_id.as_deref().map(|id| ("ExternalId", id));
        self.ask(role, "AssumeRole", external_id, Some(keys)).await
    }

    /// Assumes the role with the web identity token in `file`, which is read again each time: the platform rotates it.
    pub(super) async fn assume_with_token(&self, role: &Role, file: &Path) -> Result<Fetched> {
        let token = token_file(file)?;
        self.ask(role, "AssumeRoleWithWebIdentity", Some(("WebIdentityToken", &token)), None).await
    }

    /// The service's address: what the vendor's tools are told, or the region's own.
    fn uri(&self) -> String {
        let named = self.environment.first(["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"]);
        named.unwrap_or_else(|| {
            let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
            format!("https://sts.{}.amazonaws.com{china}", self.region)
        })
    }

    /// Requests the role. A parameter, a signature with keys, or both authenticate the request.
    async fn ask(
        &self,
        role: &Role,
        action: &str,
        proof: Option<(&str, &str)>,
        keys: Option<&Credential>,
    ) -> Result<Fetched> {
        let session = role.session.clone().unwrap_or_else(|| format!("fuelrail-{}", self.now.0));
        let named =
            [("Action", action), ("Version", "2011-06-15"), ("RoleArn", &role.arn), ("RoleSessionName", &session)];
        let duration = role.duration_s.as_deref().map(|seconds| ("DurationSeconds", seconds));
        let pairs: Vec<_> = named.into_iter().chain(proof).chain(duration).collect();
        let (body, uri) = (form(&pairs), self.uri());
        let endpoint: Endpoint = uri.parse()?;
        let uri = format!("{}/", uri.trim_end_matches('/'));
        let mut now = self.now;
        loop {
            let signature = keys.map(|keys| self.signature(&endpoint.authority(), &body, keys, now)).transpose()?;
            let lines = signature.iter().flatten().map(|(name, value)| (*name, value.as_str()));
            let headers: Vec<_> = [("content-type", FORM)].into_iter().chain(lines).collect();
            let ca_file = self.environment.path("AWS_CA_BUNDLE");
            let service = Service { ca_file, ..token_service(&uri, self.environment) };
            let answer = service.ask(Method::POST, &headers, body.clone()).await?;
            let there = answer.date().filter(|at| at.seconds_since(now).unsigned_abs() > SKEW_S_MIN);
            match (parse_session(&answer.body), there) {
                (Ok(credential), _) => return Ok(Fetched { at: answer.date(), ..Fetched::new(credential) }),
                // A wrong clock here makes a wrong signature: once more, by the service's.
                (Err(_), Some(there)) if keys.is_some() && now == self.now => now = there,
                (Err(error), _) => {
                    let cause = format!("{} answered {}: {}", endpoint.host, answer.status.as_str(), error.cause());
                    return Err(Error::new(error.kind(), cause));
                }
            }
        }
    }

    fn signature(
        &self,
        host: &str,
        body: &str,
        keys: &Credential,
        now: WallTime,
    ) -> Result<Vec<(&'static str, String)>> {
        let scope = Scope { region: self.region.into(), service: "sts" };
        let request =
            Unsigned { method: "POST", host, path_and_query: "/", headers: &[("content-type", FORM.as_bytes())] };
        let (hash, mut lines) = (sha256_hex(body.as_bytes()), Vec::new());
        let mut signer = Signer::new(Realm { scope, requester_pays: false });
        signer.sign(keys, (&request, Payload::Sha256(&hash)), now, &mut String::new(), &mut lines)?;
        let lines = String::from_utf8_lossy(&lines).into_owned();
        let value = |name: &'static str| {
            let found = lines.lines().filter_map(|line| line.split_once(": "));
            found.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| (name, value.into()))
        };
        Ok(["authorization", "x-amz-date", "x-amz-security-token"].into_iter().filter_map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_agents_only() {
        for host in ["127.0.0.1", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"] {
            assert!(is_near(host), "{host}");
        }
        for host in ["169.254.169.254", "example.org", "10.0.0.1", "localhost.example.org"] {
            assert!(!is_near(host), "{host}");
        }
    }
}
