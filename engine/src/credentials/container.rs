//! Credentials that an agent beside a container hands out: ECS tasks, EKS Pod Identity.

use super::chain::{Fetched, Source};
use super::environment::Environment;
use super::http::{Ask, ask};
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::sign::parse_keys;
use fuelrail_wire::{Endpoint, Scheme};
use std::net::IpAddr;

const AGENT: &str = "http://169.254.170.2";
const PATIENCE: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;

/// What the agent has.
///
/// # Errors
/// When one is named and hands nothing out.
pub(super) async fn credential(environment: &Environment) -> Result<Source> {
    let relative = environment.plain("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{AGENT}{path}"));
    let Some(uri) = relative.or_else(|| environment.plain("AWS_CONTAINER_CREDENTIALS_FULL_URI")) else {
        return Ok(Source::Nothing("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set".into()));
    };
    let endpoint: Endpoint = uri.split('?').next().unwrap_or_default().parse()?;
    if endpoint.scheme == Scheme::Http && !is_near(&endpoint.host) {
        let cause = format!("{} is neither this machine nor an agent's address", endpoint.host);
        return Err(Error::new(Kind::Usage, cause).cure("a token may go there over https only"));
    }
    let mut headers = Vec::new();
    if let Some(file) = environment.path("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        let token = std::fs::read_to_string(&file);
        let token = token.map_err(|e| Error::new(Kind::File, format!("the token file {}: {e}", file.display())))?;
        headers.push(("authorization".to_string(), token.trim().to_string()));
    } else if let Some(token) = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") {
        headers.push(("authorization".to_string(), token.to_string()));
    }
    let asked = Ask { method: "GET", uri: &uri, headers, patience: PATIENCE, attempts: ATTEMPTS, ..Ask::default() };
    let answer = ask(asked, environment.path("AWS_CA_BUNDLE")).await?;
    if answer.status != 200 {
        return Err(Error::new(Kind::Denied, format!("{} answered {}", endpoint.authority(), answer.status)));
    }
    Ok(Source::Found(Fetched { at: answer.at, ..Fetched::new(parse_keys(&answer.body)?) }))
}

/// Where the vendor's tools send a token without TLS.
fn is_near(host: &str) -> bool {
    let Ok(address) = host.parse::<IpAddr>() else { return host == "localhost" };
    address.is_loopback()
        || ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"].iter().any(|a| a.parse() == Ok(address))
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
