//! Redirects: where a bucket is when its server says it is in another region or on another host.
//!
//! Judges one response against its request. Never follows a redirect to a less safe place: not from TLS to plain HTTP, and with
//! credentials only between hosts of one owner.

use crate::uri::{Addressing, Endpoint, Scheme, host_of_server};
use fuelrail_base::{Error, Kind, Result};

/// A response that may be a redirect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// Its status.
    pub status: u16,
    /// Its `Location` line.
    pub location: Option<&'a str>,
    /// Its `x-amz-bucket-region` line, or the region that its error document names.
    pub region: Option<&'a str>,
}

/// Where to send requests instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The bucket at its new place.
    pub endpoint: Endpoint,
    /// The region to sign for there, if the response names one.
    pub region: Option<String>,
    /// The redirect is permanent: later runs may go there at once (RFC 9110, 15.4).
    pub lasting: bool,
}

/// Where the bucket is, if `answer` to a request for `path` at `from` redirects; `None` if it does not. `signed`: the request carried
/// credentials.
///
/// # Errors
/// [`Kind::Usage`] when the redirect may not or cannot be followed, with what to set instead.
pub fn moved(from: &Endpoint, path: &str, answer: Answer<'_>, signed: bool) -> Result<Option<Moved>> {
    let sends_on = matches!(answer.status, 301 | 302 | 307 | 308);
    let lasting = matches!(answer.status, 301 | 308);
    // Signed for another region than the bucket's: Amazon answers 400, others 403.
    let judges_signatures = signed && matches!(answer.status, 400 | 403);
    if !(sends_on || judges_signatures) {
        return Ok(None);
    }
    if let Some(region) = answer.region {
        if let Some(endpoint) = from.in_region(region) {
            let elsewhere = endpoint != *from;
            return Ok(elsewhere.then(|| Moved { endpoint, region: Some(region.into()), lasting: true }));
        }
        if !sends_on && from.region().is_none() {
            return Ok(Some(Moved { endpoint: from.clone(), region: Some(region.into()), lasting: true }));
        }
    }
    let (true, Some(location)) = (sends_on, answer.location) else { return Ok(None) };
    let endpoint = located(from, path, location)?;
    if from.scheme == Scheme::Https && endpoint.scheme == Scheme::Http {
        return Err(refused(from, &endpoint, "without TLS"));
    }
    if signed && !is_of_one_owner(from, &endpoint) {
        return Err(refused(from, &endpoint, "which may belong to another owner; credentials are not sent there"));
    }
    if endpoint == *from {
        return Err(Error::new(Kind::Usage, "redirect loop: the server redirects to the same URL")
            .with_hint("check the configuration of the server or of the proxy before it"));
    }
    Ok(Some(Moved { endpoint, region: answer.region.map(Into::into), lasting }))
}

fn refused(from: &Endpoint, to: &Endpoint, why: &str) -> Error {
    let [here, there] = [from, to].map(|server| format!("{}://{}", server.scheme.word(), server.authority()));
    Error::new(Kind::Usage, format!("{here} redirects to {there}, {why}: not followed"))
        .with_hint(format!("if the bucket is there, name it: endpoint = {there}, or that host in the URI"))
}

/// The endpoint whose `path` the location is.
fn located(from: &Endpoint, path: &str, location: &str) -> Result<Endpoint> {
    let other_key = || {
        Error::new(Kind::Usage, "the server redirects to another path: not followed")
            .with_hint("write the URI as the server expects it: its host, its path, and https:// if it requires that")
    };
    let Some((word, rest)) = location.split_once("://") else { return Err(other_key()) };
    let (authority, there) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (scheme, host, port) = host_of_server(word, authority)?;
    let there = there.split('?').next().filter(|path| !path.is_empty()).unwrap_or("/");
    let path = path.split('?').next().unwrap_or_default();
    if there == path {
        return Ok(Endpoint { scheme, host, port, ..from.clone() });
    }
    let in_path = Endpoint { addressing: Addressing::Path, ..from.clone() }.bucket_path();
    if from.addressing == Addressing::Path
        && !from.bucket.is_empty()
        && host.strip_prefix(&from.bucket).is_some_and(|rest| rest.starts_with('.'))
        && path.strip_prefix(&in_path).is_some_and(|rest| rest == there || (rest.is_empty() && there == "/"))
    {
        return Ok(Endpoint { scheme, host, port, addressing: Addressing::VirtualHost, ..from.clone() });
    }
    Err(other_key())
}

/// Whether both are one server, or the storage of one cloud. Another port is another server, as it is to curl and browsers: on a shared
/// machine it may be another user's.
fn is_of_one_owner(a: &Endpoint, b: &Endpoint) -> bool {
    let is_usual = |server: &Endpoint| server.port == server.scheme.port_default();
    if a.host == b.host {
        return a.port == b.port || is_usual(a) && is_usual(b);
    }
    let owner = storage_of(&b.host);
    b.scheme == Scheme::Https && is_usual(b) && owner.is_some() && owner == storage_of(&a.host)
}

/// The cloud whose storage service the host belongs to, if requests to all hosts of that service may carry the same credential. Not
/// Azure, where each account is an owner of its own, and of Amazon's hosts only those of S3: the others (API Gateway, load balancers) run
/// customers' code.
fn storage_of(host: &str) -> Option<&'static str> {
    const GOOGLE: &str = "storage.googleapis.com";
    if host == GOOGLE || host.ends_with(".storage.googleapis.com") {
        return Some(GOOGLE);
    }
    let (rest, owner) = [".amazonaws.com", ".amazonaws.com.cn"]
        .into_iter()
        .find_map(|owner| Some((host.strip_suffix(owner)?, owner)))?;
    let is_s3 = |label: &str| label == "s3" || label.starts_with("s3-");
    let mut labels = rest.rsplit('.');
    let last = labels.next()?;
    // `s3.REGION`, `s3.dualstack.REGION`, and the old forms `s3` and `s3-REGION`.
    let before = labels.find(|label| *label != "dualstack");
    (is_s3(last) || before.is_some_and(is_s3)).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(location: &str) -> Answer<'_> {
        Answer { status: 307, location: Some(location), region: None }
    }

    fn host_and_path(endpoint: &Endpoint) -> String {
        format!("{}://{}{}", endpoint.scheme.word(), endpoint.authority(), endpoint.object_path("k/é"))
    }

    #[test]
    fn amazon_names_the_region_in_a_line() {
        let from: Endpoint = "s3://bucket/set/".parse().unwrap();
        for (status, signed, followed) in
            [(301, false, true), (307, true, true), (400, true, true), (403, false, false)]
        {
            let answer = Answer { status, location: None, region: Some("eu-west-1") };
            let found = moved(&from, "/k", answer, signed).unwrap();
            assert_eq!(found.is_some(), followed, "{status}");
            if let Some(Moved { endpoint, region, lasting }) = found {
                assert_eq!(host_and_path(&endpoint), "https://bucket.s3.eu-west-1.amazonaws.com/k/%C3%A9");
                assert_eq!((endpoint.prefix.as_str(), region.as_deref(), lasting), ("set/", Some("eu-west-1"), true));
            }
        }
        let here = Answer { status: 403, location: None, region: Some("us-east-1") };
        assert_eq!(moved(&from, "/k", here, true).unwrap(), None, "denied where it is");
        let odd = Answer { status: 301, location: None, region: Some("eu.evil.example/") };
        assert_eq!(moved(&from, "/k", odd, true).unwrap(), None);
    }

    #[test]
    fn a_location_moves_the_host_and_keeps_the_key() {
        let from: Endpoint = "http://h:9000/bucket/set/".parse().unwrap();
        let path = from.object_path("k/é");
        for (location, wanted) in [
            ("http://other:81/bucket/k/%C3%A9", "http://other:81/bucket/k/%C3%A9"),
            ("https://[::1]/bucket/k/%C3%A9?list-type=2", "https://[::1]/bucket/k/%C3%A9"),
            ("HTTP://bucket.H/k/%C3%A9", "http://bucket.h/k/%C3%A9"),
        ] {
            let found = moved(&from, &path, to(location), false).unwrap().unwrap();
            assert_eq!((host_and_path(&found.endpoint).as_str(), found.lasting), (wanted, false));
        }
        let bucket =
            moved(&from, "/bucket?list-type=2", to("http://bucket.h:9000/?list-type=2"), false).unwrap().unwrap();
        assert_eq!(bucket.endpoint.addressing, Addressing::VirtualHost);
        assert_eq!(moved(&from, &path, Answer { status: 304, ..to("http://x/") }, false).unwrap(), None);
        assert_eq!(moved(&from, &path, Answer { location: None, ..to("") }, false).unwrap(), None);
    }

    #[test]
    fn nothing_becomes_less_safe_on_the_way() {
        let tls: Endpoint = "https://h/bucket/".parse().unwrap();
        let plain: Endpoint = "http://h/bucket/".parse().unwrap();
        let cloud: Endpoint = "s3://bucket/".parse().unwrap();
        let account: Endpoint = "az://account/set/".parse().unwrap();
        for (from, path, location, signed, said) in [
            (&tls, "/bucket/k", "http://h/bucket/k", false, "without TLS"),
            (&plain, "/bucket/k", "http://evil/bucket/k", true, "http://h redirects to http://evil, which"),
            (&plain, "/bucket/k", "http://h:81/bucket/k", true, "http://h redirects to http://h:81, which"),
            (&cloud, "/k", "https://amazonaws.com.evil.example/k", true, "credentials"),
            (&cloud, "/k", "https://s3-evil-1.us-east-1.elb.amazonaws.com/k", true, "credentials"),
            (&cloud, "/k", "https://x.execute-api.us-east-1.amazonaws.com/k", true, "credentials"),
            (&cloud, "/k", "https://bucket.s3.cn-north-1.amazonaws.com.cn/k", true, "credentials"),
            (&account, "/set/k", "https://evil.blob.core.windows.net/set/k", true, "credentials"),
            (&cloud, "/k", "http://bucket.s3.eu-west-1.amazonaws.com/k", true, "without TLS"),
            (&plain, "/bucket/k", "http://h/bucket/other", false, "another path"),
            (&plain, "/bucket/k", "/bucket/k", false, "another path"),
            (&plain, "/bucket/k", "http://h/bucket/k", false, "redirect loop"),
            (&plain, "/bucket/k", "ftp://h/bucket/k", false, "http"),
            (&plain, "/bucket/k", "http://user:secret@h/bucket/k", false, "user information"),
            (&plain, "/bucket/k", "http://h\r\nX: y/bucket/k", false, "host name"),
        ] {
            let error = moved(from, path, to(location), signed).unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains(said), "{location}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let within = moved(&cloud, "/k", to("https://bucket.s3-us-west-2.amazonaws.com/k"), true).unwrap().unwrap();
        assert_eq!(within.endpoint.host, "bucket.s3-us-west-2.amazonaws.com");
        assert!(moved(&plain, "/bucket/k", to("https://h/bucket/k"), true).unwrap().is_some(), "on to TLS");
    }
}
