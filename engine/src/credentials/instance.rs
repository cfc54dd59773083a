//! The role of an EC2 instance, from its metadata service (IMDSv2: with a session token, never without).

use super::chain::{Fetched, Source};
use super::environment::Environment;
use super::http::{Answer, Ask, ask};
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::sign::parse_keys;

const SERVICE: &str = "http://169.254.169.254";
/// The service is on the machine or not there at all.
const PATIENCE: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 2;
const ROLES: &str = "latest/meta-data/iam/security-credentials/";

/// What the instance's role has.
///
/// # Errors
/// When the service answers and hands nothing out.
pub(super) async fn credential(environment: &Environment) -> Result<Source> {
    if environment.plain("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(Source::Nothing("AWS_EC2_METADATA_DISABLED is set".into()));
    }
    let named = environment.plain("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let service = named.as_deref().unwrap_or(SERVICE).trim_end_matches('/');
    let ttl = ("x-aws-ec2-metadata-token-ttl-seconds".to_string(), "21600".to_string());
    let token = match request("PUT", &format!("{service}/latest/api/token"), ttl).await {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            return Ok(Source::Nothing(format!("{service} answered {} instead of a session token", answer.status)));
        }
        Err(error) if named.is_none() => return Ok(Source::Nothing(error.cause().to_string())),
        Err(error) => return Err(error),
    };
    let token = String::from_utf8_lossy(&token.body).trim().to_string();
    let with = || ("x-aws-ec2-metadata-token".to_string(), token.clone());
    let roles = request("GET", &format!("{service}/{ROLES}"), with()).await?;
    let text = String::from_utf8_lossy(&roles.body).into_owned();
    let Some(role) = text.lines().next().map(str::trim).filter(|role| roles.status == 200 && !role.is_empty()) else {
        return Ok(Source::Nothing("the instance has no role".into()));
    };
    let answer = request("GET", &format!("{service}/{ROLES}{role}"), with()).await?;
    if answer.status != 200 {
        return Err(Error::new(Kind::Server, format!("{service} answered {} for its role", answer.status)));
    }
    Ok(Source::Found(Fetched { at: answer.at, ..Fetched::new(parse_keys(&answer.body)?) }))
}

async fn request(method: &str, uri: &str, header: (String, String)) -> Result<Answer> {
    let asked = Ask { method, uri, headers: vec![header], patience: PATIENCE, attempts: ATTEMPTS, ..Ask::default() };
    ask(asked, None).await
}
