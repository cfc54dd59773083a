//! Temporary credentials, as AWS hands them out, and buckets that look at them.

use super::services::{Answer, Heard, Service};
use fuelrail::{Environment, LoaderBuilder};
use fuelrail_base::WallTime;
use fuelrail_bucket::Bucket;
use fuelrail_wire::date;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time.
pub fn now() -> WallTime {
    WallTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

/// Variables of an environment that has these and nothing else.
pub fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::given(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

/// As the metadata service and containers' agents write keys.
pub fn keys(token: &str, lasts_s: i64) -> Answer {
    let expires = date::iso(now().shifted(lasts_s));
    Answer::ok(format!(
        r#"{{"Code":"Success","AccessKeyId":"marked-id","SecretAccessKey":"marked-secret","Token":"{token}","Expiration":"{expires}"}}"#
    ))
}

/// A metadata service whose role has what `role` says.
pub fn metadata(role: impl Fn() -> Answer + Send + Sync + 'static) -> Service {
    Service::start(move |heard| {
        if heard.line == "PUT /latest/api/token" {
            return Answer::ok("marked-imds");
        }
        match (heard.header("x-aws-ec2-metadata-token"), heard.line.rsplit('/').next()) {
            ("marked-imds", Some("")) => Answer::ok("role"),
            ("marked-imds", Some("role")) => role(),
            _ => Answer(401, String::new(), String::new()),
        }
    })
}

/// A loader that signs.
pub fn signed(builder: LoaderBuilder, environment: Environment) -> LoaderBuilder {
    builder.anonymous(false).environment(environment)
}

/// The bucket, through the gate.
pub fn at_gate(gate: &Service, bucket: &Bucket) -> String {
    let path = bucket.url("").splitn(4, '/').nth(3).unwrap_or_default().to_string();
    format!("{}/{path}", gate.url())
}

/// Refuses what carries no token of `good`.
pub fn expects(good: impl Fn(&str) -> bool + Send + Sync + 'static) -> impl Fn(&Heard) -> Option<Answer> + Send + Sync {
    move |heard| {
        let token = heard.header("x-amz-security-token");
        if !heard.header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=marked-id/") {
            return Some(Answer::refusal(403, "AccessDenied", ""));
        }
        if good(token) { None } else { Some(Answer::refusal(400, "ExpiredToken", "")) }
    }
}
