//! What the configuration says of who asks.

use super::environment::Environment;
use fuelrail_wire::{Dialect, Endpoint};

/// Who asks a bucket, and how that is found out. The default signs requests to the clouds' own URIs with what their tools
/// would use here, and sends none to a plain `http://` or `https://` one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The region signed for; from `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile where it is not given. It never means that
    /// requests are signed.
    pub region: Option<String>,
    /// The profile of the AWS files whose keys are used, before those of the environment.
    pub profile: Option<String>,
    /// Sign nothing (`true`), or sign also what goes to a plain URI (`false`).
    pub anonymous: Option<bool>,
    /// Who asks pays for it, where the bucket wants that.
    pub requester_pays: bool,
    /// Where the variables of the clouds' tools are read.
    pub environment: Environment,
}

/// A bucket, and how requests to it are signed: decided from settings and URI before the first request. An answer may move
/// the bucket within what one owner's name stands for and name the region to sign for; who signs, if anybody, stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) endpoint: Endpoint,
    /// `None` where requests go unsigned.
    pub(crate) signing: Option<Signing>,
}

/// Whose credentials requests are signed with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signing {
    pub(crate) provider: Provider,
    /// The region that the bucket's server says to sign for; `None` takes that of the host or of the settings.
    pub(crate) region: Option<String>,
}

/// Whose credentials a bucket takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Provider {
    /// AWS, and what speaks S3 like it.
    Aws,
    Google,
    Azure,
}

impl Credentials {
    /// How requests to `uri` are signed; `None` where they are sent unsigned. Asked once, before the first request: what a server
    /// answers must not decide it.
    pub(crate) fn signing(&self, uri: &str, endpoint: &Endpoint) -> Option<Signing> {
        let scheme = uri.split("://").next().unwrap_or_default().to_ascii_lowercase();
        let (provider, signed) = match scheme.as_str() {
            "s3" | "s3a" => (Provider::Aws, true),
            "gs" | "gcs" => (Provider::Google, true),
            "az" | "abfs" | "abfss" => (Provider::Azure, true),
            _ => self.plain_provider(endpoint),
        };
        let anonymous = self.anonymous.unwrap_or(!signed);
        (!anonymous).then_some(Signing { provider, region: None })
    }

    /// A plain URI is signed for when somebody asked for it: with a profile, or by naming the server to the tools. A
    /// credential must not go to whatever server a URI names.
    fn plain_provider(&self, endpoint: &Endpoint) -> (Provider, bool) {
        match endpoint.dialect {
            Dialect::Gcs if self.environment.get("AWS_ACCESS_KEY_ID").is_none() => return (Provider::Google, false),
            Dialect::Azure => return (Provider::Azure, false),
            _ => {}
        }
        let named =
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter().find_map(|name| self.environment.plain(name));
        let named = named.and_then(|url| url.parse::<Endpoint>().ok());
        let is_named =
            named.is_some_and(|named| (named.scheme, named.authority()) == (endpoint.scheme, endpoint.authority()));
        (Provider::Aws, is_named || self.profile.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(uri: &str, settings: &Credentials) -> Option<Provider> {
        let plain = uri.split_once("://").map_or(String::new(), |(scheme, rest)| {
            format!("{}://{rest}", if scheme.starts_with("http") { scheme } else { "https" })
        });
        settings.signing(uri, &plain.parse().unwrap()).map(|signing| signing.provider)
    }

    #[test]
    fn the_clouds_own_uris_are_signed_for_and_plain_ones_when_asked() {
        let none = Credentials { environment: Environment::given([]), ..Credentials::default() };
        for (uri, by_default, asked) in [
            ("s3://b/p", Some(Provider::Aws), Provider::Aws),
            ("gs://b/p", Some(Provider::Google), Provider::Google),
            ("az://a/c/p", Some(Provider::Azure), Provider::Azure),
            ("abfss://c@a/p", Some(Provider::Azure), Provider::Azure),
            ("http://127.0.0.1:9000/b", None, Provider::Aws),
            ("https://storage.googleapis.com/b", None, Provider::Google),
            ("https://a.blob.core.windows.net/c", None, Provider::Azure),
            ("https://a.blob.core.usgovcloudapi.net/c", None, Provider::Azure),
        ] {
            let uri = uri.replace("c@", "");
            assert_eq!(provider(&uri, &none), by_default, "{uri}");
            let told = |anonymous| Credentials { anonymous: Some(anonymous), ..none.clone() };
            assert_eq!((provider(&uri, &told(true)), provider(&uri, &told(false))), (None, Some(asked)), "{uri}");
        }
        let profile = Credentials { profile: Some("x".into()), ..none.clone() };
        assert_eq!(provider("https://h/b", &profile), Some(Provider::Aws));
        let keys = Environment::given([("AWS_ACCESS_KEY_ID".into(), "a".into())]);
        let keys = Credentials { environment: keys, region: Some("eu-west-1".into()), ..none.clone() };
        assert_eq!(provider("https://h/b", &keys), None, "keys do not go to whatever server a URI names");
        let named = Environment::given([("AWS_ENDPOINT_URL".into(), "http://h:9000".into())]);
        let named = Credentials { environment: named, ..none };
        assert_eq!(
            (provider("http://h:9000/b", &named), provider("http://g:9000/b", &named)),
            (Some(Provider::Aws), None)
        );
    }
}
