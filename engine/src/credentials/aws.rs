//! The chain of AWS: environment, profile, web identity, container, instance; and the region that is signed for.

use super::profile::Profiles;
use super::roles::{Role, Sts, container, from_environment, instance};
use super::settings::Credentials;
use super::source::{Fetched, Source, first};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::wall_now;
use fuelrail_wire::uri::REGION_DEFAULT;
use futures_util::FutureExt;

/// The profile in use, and whether the user chose it.
fn profile(settings: &Credentials) -> (String, bool) {
    let named = settings.profile.clone().or_else(|| settings.environment.plain("AWS_PROFILE"));
    (named.clone().unwrap_or_else(|| "default".into()), named.is_some())
}

/// The region that is signed for.
pub(crate) fn region(settings: &Credentials) -> Result<String> {
    let get = |name| settings.environment.plain(name);
    let told = settings.region.clone().or_else(|| get("AWS_REGION")).or_else(|| get("AWS_DEFAULT_REGION"));
    let region = match told {
        Some(region) => region,
        None => {
            let profiles = Profiles::read(&settings.environment)?;
            profiles.get(&profile(settings).0, "region").unwrap_or(REGION_DEFAULT).to_string()
        }
    };
    checked(region)
}

/// Checks that a region's name can be signed for.
pub(super) fn checked(region: String) -> Result<String> {
    if !region.is_empty() && region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Ok(region);
    }
    Err(Error::new(Kind::Usage, format!("region is '{}'", region.escape_debug()))
        .with_hint("write a region such as eu-central-1"))
}

/// One walk along the chain.
pub(super) async fn fetch(settings: &Credentials) -> Result<Fetched> {
    let (environment, region) = (&settings.environment, region(settings)?);
    let service = Sts { environment, region: &region, now: wall_now() };
    let (name, named) = profile(settings);
    let from_profile = async { Profiles::read(environment)?.credential(&name, named, &service).await };
    // A profile that the configuration names goes before keys that happen to be in the environment.
    let keys =
        settings.profile.is_none().then(|| ("environment", async { from_environment(environment) }.boxed_local()));
    first(keys.into_iter().chain([
        ("profile", from_profile.boxed_local()),
        ("web identity", web_identity(&service).boxed_local()),
        ("container", container(environment).boxed_local()),
        ("instance", instance(environment).boxed_local()),
    ]))
    .await
}

/// A role for a token that the platform keeps in a file: EKS, and whatever else speaks OpenID Connect.
async fn web_identity(service: &Sts<'_>) -> Result<Source> {
    let get = |name| service.environment.plain(name);
    let (Some(file), Some(arn)) = (get("AWS_WEB_IDENTITY_TOKEN_FILE"), get("AWS_ROLE_ARN")) else {
        return Ok(Err("AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN are not both set".into()));
    };
    let role = Role { arn, session: get("AWS_ROLE_SESSION_NAME"), ..Role::default() };
    service.assume_with_token(&role, file.as_ref()).await.map(Ok)
}
