//! How a bucket is reached: which server its URI means, which certificates are accepted, and which credentials sign; and where it is found
//! when its server says that it has moved.
//!
//! Reads the variables of the clouds' own tools from an environment it is given. Remembers for the process where buckets have moved for
//! good. What may be followed is `wire`'s to judge.

use crate::credentials::{Credentials, Origin, Provider, authority_for, region};
use crate::folder::settled;
use crate::outage::outlast;
use crate::proxy::Route;
use crate::proxy::proxy_for;
use crate::tls::Tls;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::redirect::Moved;
use fuelrail_wire::{Cloud, Endpoint, Scheme, Source};
use std::sync::{Mutex, PoisonError};

/// What a URI does not say about its bucket. The default is the clouds' own servers, the system's authorities, and what the clouds'
/// own tools would ask as from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// How the server's certificate is judged.
    pub tls: Tls,
    /// Which server `s3://`, `gs://` and `az://` mean.
    pub cloud: Cloud,
    /// What requests are signed with.
    pub credentials: Credentials,
}

impl From<&Access> for Access {
    fn from(access: &Access) -> Access {
        access.clone()
    }
}

impl From<&Tls> for Access {
    fn from(tls: &Tls) -> Access {
        Access { tls: tls.clone(), ..Access::default() }
    }
}

impl Access {
    /// The same, with what is not set filled from the variables and files that the cloud's own tools read here: the server and the
    /// signature have to be for one region.
    pub(crate) fn settled(mut self, uri: &str) -> Result<Access> {
        let cloud = Provider::of(uri);
        if cloud.is_some() && !cfg!(feature = "clouds") {
            let scheme = uri.split("://").next().unwrap_or_default();
            return Err(Error::new(Kind::Usage, format!("this build does not reach {scheme}:// buckets"))
                .with_hint("build it with the feature `clouds`, or use a folder, or an http:// URI with a manifest"));
        }
        let environment = self.credentials.environment.clone();
        self.take_vendors(uri, |name| environment.plain(name));
        if cloud == Some(Provider::Aws) && self.cloud.region.is_empty() {
            self.cloud.region = region(&self.credentials)?;
        }
        Ok(self)
    }

    /// The bucket and the prefixes that `uri` stands for.
    pub(crate) fn source(&self, uri: &str) -> Result<Source> {
        settled(self.cloud.source(uri)?)
    }

    /// How the object that `uri` names is reached, where its bucket is, and its key.
    pub(crate) fn object(self, uri: &str) -> Result<(Access, Endpoint, String)> {
        self.object_below(uri, "")
    }

    /// The same for the object whose key is that of `uri` with `below` appended: any text, where a URI cannot hold some.
    pub(crate) fn object_below(self, uri: &str, below: &str) -> Result<(Access, Endpoint, String)> {
        let access = self.settled(uri)?;
        let mut endpoint = access.cloud.endpoint(uri)?;
        endpoint.prefix.push_str(below);
        let key = endpoint.prefix.clone();
        if key.is_empty() {
            return Err(Error::new(Kind::Usage, format!("'{uri}' does not name an object"))
                .with_hint("write s3://BUCKET/KEY or http://HOST:PORT/BUCKET/KEY; `fuelrail ls` shows the keys"));
        }
        Ok((access, endpoint, key))
    }

    /// Reads certificates, and gets a credential where requests are signed.
    pub(crate) fn open(&self, origin: &Origin) -> Result<Route> {
        let plain = Route::new(origin.endpoint.clone());
        if origin.endpoint.scheme == Scheme::File {
            return Ok(plain);
        }
        let (tls, credentials) = (self.tls.client(&origin.endpoint)?, &self.credentials);
        let proxy = proxy_for(&credentials.environment, &origin.endpoint)?;
        Ok(Route { tls, proxy, authority: authority_for(credentials, origin)?, ..plain })
    }

    /// Fills what is not set from the variables that the cloud's own tools read, as far as they are about `uri`.
    pub(crate) fn take_vendors(&mut self, uri: &str, variable: impl Fn(&str) -> Option<String>) {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let scheme = uri.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let amazon = matches!(scheme.as_str(), "s3" | "s3a");
        if amazon && self.cloud.region.is_empty() {
            self.cloud.region = first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_default();
        }
        if amazon && self.cloud.endpoint.is_empty() {
            self.cloud.endpoint = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).unwrap_or_default();
        }
        if amazon && self.tls == Tls::default() {
            self.tls.ca_file = first(&["AWS_CA_BUNDLE"]).map(Into::into);
        }
        if matches!(scheme.as_str(), "gs" | "gcs")
            && self.cloud.endpoint.is_empty()
            && let Some(host) = first(&["STORAGE_EMULATOR_HOST"])
        {
            // Google's own clients take it with a scheme and without.
            self.cloud.endpoint = if host.contains("://") { host } else { format!("http://{host}") };
        }
    }
}

/// More than any bucket needs: from the old host to the new one, and on to the right region.
const HOPS_MAX: usize = 3;
/// Buckets remembered; the oldest is forgotten.
const REMEMBERED_MAX: usize = 64;

/// Permanent redirects of buckets, by original place and trust settings.
static REMEMBERED: Mutex<Vec<(Place, Moved)>> = Mutex::new(Vec::new());

/// A bucket's original place, and the settings that decide whether its redirect is trusted: signing, accepted certificates and proxy.
/// A run with other settings sends its own request.
#[derive(Clone, PartialEq)]
struct Place {
    /// Without its prefix: all of a bucket has moved, whatever of it is asked for.
    bucket: Endpoint,
    signing: Option<Provider>,
    tls: Tls,
    proxy: Option<String>,
}

/// Does `work` at the bucket's place: at `endpoint`, that of `uri`, or where its server redirects to. After a redirect `work` starts
/// over. A server that serves nothing is waited for as long as `wait`, as are those that hand out credentials for it.
pub(crate) fn wherever<T>(
    access: &Access,
    uri: &str,
    endpoint: Endpoint,
    wait: Option<Duration>,
    mut work: impl FnMut(&Route) -> Result<T>,
) -> Result<(T, Route)> {
    let proxy = proxy_for(&access.credentials.environment, &endpoint)?.map(|proxy| proxy.authority());
    let mut origin = Origin { signing: access.credentials.signing(uri, &endpoint), endpoint };
    let signing = origin.signing.as_ref().map(|signing| signing.provider);
    let place = |endpoint: &Endpoint| {
        let bucket = Endpoint { prefix: String::new(), ..endpoint.clone() };
        Place { bucket, signing, tls: access.tls.clone(), proxy: proxy.clone() }
    };
    if let Some(moved) = remembered(&place(&origin.endpoint)) {
        go(&mut origin, moved);
    }
    let mut hops = 0;
    loop {
        let route = outlast(&origin.endpoint, wait, || access.open(&origin))?;
        let route = Route { wait, ..route };
        let outcome = work(&route);
        let moved = route.moved().take();
        match (outcome, moved) {
            (Err(_), Some(moved)) if hops < HOPS_MAX => {
                hops += 1;
                if moved.lasting {
                    remember(place(&origin.endpoint), moved.clone());
                }
                go(&mut origin, moved);
            }
            (outcome, _) => return Ok((outcome?, route)),
        }
    }
}

/// The rest of the URI stays as it is, and so does who signs.
fn go(origin: &mut Origin, moved: Moved) {
    let prefix = core::mem::take(&mut origin.endpoint.prefix);
    origin.endpoint = Endpoint { prefix, ..moved.endpoint };
    if let (Some(signing), Some(region)) = (&mut origin.signing, moved.region) {
        signing.region = Some(region);
    }
}

fn remembered(place: &Place) -> Option<Moved> {
    let known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|(from, _)| from == place).map(|(_, moved)| moved.clone())
}

fn remember(place: Place, moved: Moved) {
    let mut known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(from, _)| *from != place);
    if known.len() == REMEMBERED_MAX {
        known.remove(0);
    }
    known.push((place, moved));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn host(uri: &str, environment: &[(&str, &str)], overrides: &[(&str, &str)]) -> String {
        let access = Access::load(uri, pairs(environment), &pairs(overrides)).unwrap();
        access.cloud.endpoint(uri).unwrap().authority()
    }

    #[test]
    fn argument_beats_our_variable_beats_the_vendors() {
        let vendor = [("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "eu-west-2")];
        assert_eq!(host("s3://bucket/", &vendor, &[]), "bucket.s3.eu-west-1.amazonaws.com");
        assert_eq!(host("s3://bucket/", &vendor[1..], &[]), "bucket.s3.eu-west-2.amazonaws.com");
        let both = [vendor[0], ("FUELRAIL_REGION", "us-west-1")];
        assert_eq!(host("s3://bucket/", &both, &[]), "bucket.s3.us-west-1.amazonaws.com");
        assert_eq!(host("s3://bucket/", &both, &[("region", "ca-west-1")]), "bucket.s3.ca-west-1.amazonaws.com");
        assert_eq!(host("s3://bucket/", &[("FUELRAIL_BATCH_SIZE", "many")], &[]), "bucket.s3.us-east-1.amazonaws.com");
    }

    #[test]
    fn a_vendors_server_is_for_its_own_uris() {
        let own = [("AWS_ENDPOINT_URL", "http://h:9000"), ("STORAGE_EMULATOR_HOST", "h:4443")];
        assert_eq!(host("s3://bucket/", &own, &[]), "h:9000");
        assert_eq!(host("s3://bucket/", &[own[0], ("AWS_ENDPOINT_URL_S3", "http://s3:1")], &[]), "s3:1");
        assert_eq!(host("gs://bucket/", &own, &[]), "h:4443");
        assert_eq!(host("az://account/set/", &own, &[]), "account.blob.core.windows.net");
        assert_eq!(host("http://else/bucket/", &own, &[]), "else");
        assert_eq!(host("az://account/set/", &own, &[("endpoint", "http://azurite:10000")]), "azurite:10000");
        let front = [("endpoint", "http://h"), ("addressing", "virtual")];
        assert_eq!(host("s3://bucket/", &own, &front), "bucket.h");
    }

    #[test]
    fn settings_are_known_with_their_group_too() {
        assert_eq!(host("s3://bucket/", &[], &[("network.endpoint", "http://h:9000")]), "h:9000");
        let given = pairs(&[("trust.anonymous", "true"), ("order.seed", "many")]);
        assert_eq!(Access::load("s3://bucket/", [], &given).unwrap().credentials.anonymous, Some(true));
        // Of the file it takes what is about access, and looks at nothing else.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "batch_size = 0\nwhat = 1\n[trust]\nanonymous = true\n[order]\nname = \"none\"\n")
            .unwrap();
        let named = [("FUELRAIL_CONFIG".to_owned(), file.path().display().to_string())];
        assert_eq!(Access::load("s3://bucket/", named, &[]).unwrap().credentials.anonymous, Some(true));
    }

    #[test]
    fn authorities_come_from_amazons_variable_unless_they_are_set() {
        let vendor = [("AWS_CA_BUNDLE", "/vendor.pem")];
        let tls =
            |uri: &str, overrides: &[(&str, &str)]| Access::load(uri, pairs(&vendor), &pairs(overrides)).unwrap().tls;
        assert_eq!(tls("s3://bucket/", &[]).ca_file, Some("/vendor.pem".into()));
        assert_eq!(tls("https://h/bucket/", &[]), Tls::default());
        assert_eq!(tls("s3://bucket/", &[("ca_file", "/own.pem")]).ca_file, Some("/own.pem".into()));
        assert_eq!(tls("s3://bucket/", &[("tls_insecure", "true")]), Tls { ca_file: None, insecure: true });
    }

    #[test]
    fn the_region_of_the_profile_is_the_servers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, "[default]\nregion = eu-north-1\n[profile far]\nregion = ap-east-1\n").unwrap();
        let config = ("AWS_CONFIG_FILE", file.to_str().unwrap());
        let host = |environment: &[(&str, &str)], overrides: &[(&str, &str)]| {
            let access = Access::load("s3://bucket/", pairs(environment), &pairs(overrides)).unwrap();
            access.settled("s3://bucket/").unwrap().cloud.endpoint("s3://bucket/").unwrap().authority()
        };
        assert_eq!(host(&[config], &[]), "bucket.s3.eu-north-1.amazonaws.com");
        assert_eq!(host(&[config], &[("profile", "far")]), "bucket.s3.ap-east-1.amazonaws.com");
        assert_eq!(host(&[config, ("AWS_REGION", "us-west-2")], &[]), "bucket.s3.us-west-2.amazonaws.com");
        assert_eq!(host(&[], &[]), "bucket.s3.us-east-1.amazonaws.com");
    }
}
