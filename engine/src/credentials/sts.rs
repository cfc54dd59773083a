//! AWS's Security Token Service: a role instead of one's own keys.

use super::chain::Fetched;
use super::environment::Environment;
use super::http::{Ask, ask, form};
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::Endpoint;
use fuelrail_wire::sign::{Credential, Payload, Realm, Scope, Signer, Unsigned, parse_session, sha256_hex};
use std::path::Path;
use zeroize::Zeroizing;

const FORM: &str = "application/x-www-form-urlencoded";
const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 3;
/// Clocks that differ by less agree.
const SKEW_S_MIN: u64 = 60;

/// The role that is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Role {
    pub(super) arn: String,
    pub(super) session: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) duration_s: Option<String>,
}

/// Who is asked, and for which region.
pub(super) struct Service<'a> {
    pub(super) environment: &'a Environment,
    pub(super) region: &'a str,
    pub(super) now: WallTime,
}

impl Service<'_> {
    /// The role, for the holder of `keys`.
    ///
    /// # Errors
    /// `Denied` with what the service says, `Network` when it does not answer.
    pub(super) async fn assume(&self, role: &Role, keys: &Credential) -> Result<Fetched> {
        let session = self.session(role);
        let mut pairs = vec![
            ("Action", "AssumeRole"),
            ("Version", "2011-06-15"),
            ("RoleArn", role.arn.as_str()),
            ("RoleSessionName", session.as_str()),
        ];
        pairs.extend(role.external_id.as_deref().map(|id| ("ExternalId", id)));
        pairs.extend(role.duration_s.as_deref().map(|seconds| ("DurationSeconds", seconds)));
        self.ask(form(&pairs), Some(keys)).await
    }

    /// The role, for who holds the token in `file`, which is read anew each time: it is replaced while it is valid.
    ///
    /// # Errors
    /// As [`Service::assume`]; `File` when there is no token.
    pub(super) async fn assume_with_token(&self, role: &Role, file: &Path) -> Result<Fetched> {
        let token = std::fs::read_to_string(file).map(Zeroizing::new);
        let token = token.map_err(|e| Error::new(Kind::File, format!("the token file {}: {e}", file.display())))?;
        let session = self.session(role);
        let mut pairs = vec![
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role.arn.as_str()),
            ("RoleSessionName", session.as_str()),
            ("WebIdentityToken", token.trim()),
        ];
        pairs.extend(role.duration_s.as_deref().map(|seconds| ("DurationSeconds", seconds)));
        self.ask(form(&pairs), None).await
    }

    fn session(&self, role: &Role) -> String {
        role.session.clone().unwrap_or_else(|| format!("fuelrail-{}", self.now.0))
    }

    /// The service's address: what the vendor's tools are told, or the region's own.
    fn uri(&self) -> String {
        let named =
            ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"].into_iter().find_map(|name| self.environment.plain(name));
        named.unwrap_or_else(|| {
            let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
            format!("https://sts.{}.amazonaws.com{china}", self.region)
        })
    }

    async fn ask(&self, body: String, keys: Option<&Credential>) -> Result<Fetched> {
        let uri = self.uri();
        let endpoint: Endpoint = uri.parse()?;
        let uri = format!("{}/", uri.trim_end_matches('/'));
        let mut now = self.now;
        loop {
            let mut headers = vec![("content-type".to_string(), FORM.to_string())];
            if let Some(keys) = keys {
                headers.extend(self.signature(&endpoint.authority(), &body, keys, now)?);
            }
            let body = body.clone();
            let asked = Ask {
                method: "POST",
                uri: &uri,
                headers,
                body,
                patience: PATIENCE,
                attempts: ATTEMPTS,
                proxies: Some(self.environment),
            };
            let answer = ask(asked, self.environment.path("AWS_CA_BUNDLE")).await?;
            let there = answer.at.filter(|at| at.seconds_since(now).unsigned_abs() > SKEW_S_MIN);
            match (parse_session(&answer.body), there) {
                (Ok(credential), _) => return Ok(Fetched { at: answer.at, ..Fetched::new(credential) }),
                // A wrong clock here makes a wrong signature: once more, by the service's.
                (Err(_), Some(there)) if keys.is_some() && now == self.now => now = there,
                (Err(error), _) => {
                    let cause = format!("{} answered {}: {}", endpoint.host, answer.status, error.cause());
                    return Err(Error::new(error.kind(), cause));
                }
            }
        }
    }

    fn signature(&self, host: &str, body: &str, keys: &Credential, now: WallTime) -> Result<Vec<(String, String)>> {
        let scope = Scope { region: self.region.into(), service: "sts" };
        let request =
            Unsigned { method: "POST", host, path_and_query: "/", headers: &[("content-type", FORM.as_bytes())] };
        let (hash, mut lines) = (sha256_hex(body.as_bytes()), Vec::new());
        let mut signer = Signer::new(Realm { scope, requester_pays: false });
        signer.sign(keys, (&request, Payload::Sha256(&hash)), now, &mut String::new(), &mut lines)?;
        let lines = String::from_utf8_lossy(&lines).into_owned();
        let pairs = lines.lines().filter_map(|line| line.split_once(": "));
        Ok(pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }
}
