//! The way to a server, decided before the first byte; no answer widens it. Its proxy is chosen from the variables that every tool reads: `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy`.
//!
//! This machine and the metadata services that hand it credentials are always reached directly.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_flow::Authority;
use fuelrail_wire::kept::SourceId;
use fuelrail_wire::redirect::Moved;
use fuelrail_wire::tls::Client as TlsClient;
use fuelrail_wire::{Endpoint, Proxy, Scheme, Source};

use crate::environment::Environment;

/// The proxy that requests to `server` go through; `None` where they go straight.
pub(crate) fn proxy_for(environment: &Environment, server: &Endpoint) -> Result<Option<Arc<Proxy>>> {
    let names: &[&'static str] = match server.scheme {
        Scheme::File => return Ok(None),
        Scheme::Https => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        // A client of a web server can set HTTP_PROXY for the CGI programs that it runs (CVE-2016-5385).
        Scheme::Http if environment.plain("REQUEST_METHOD").is_some() => &["http_proxy", "all_proxy", "ALL_PROXY"],
        Scheme::Http => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
    };
    let named = names.iter().find_map(|name| Some((name, environment.get(name)?)));
    let Some((name, text)) = named else { return Ok(None) };
    if is_this_machine(&server.host) || is_excepted(environment, server)? {
        return Ok(None);
    }
    Proxy::parse(name, &text).map(|proxy| Some(Arc::new(proxy)))
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
}

/// Whether `no_proxy` names it: read as curl reads it, and with what Go's tools take besides, `*.DOMAIN` and `HOST:PORT`.
fn is_excepted(environment: &Environment, server: &Endpoint) -> Result<bool> {
    environment.first(["no_proxy", "NO_PROXY"]).map_or(Ok(false), |list| is_named(&list, server))
}

#[cfg(feature = "clouds")]
fn is_named(list: &str, server: &Endpoint) -> Result<bool> {
    let entries = list.split(|c: char| c == ',' || c.is_whitespace()).filter_map(|entry| at_port(entry, server.port));
    let uri = crate::connect::server_uri(server);
    let uri: hyper::Uri = uri.parse().map_err(|e| Error::new(Kind::Usage, format!("{uri} is not an address: {e}")))?;
    // The matcher says whether a server has a proxy; only its exceptions matter here.
    let matcher = hyper_util::client::proxy::matcher::Matcher::builder().all("http://any");
    Ok(matcher.no(entries.collect::<Vec<_>>().join(",")).build().intercept(&uri).is_none())
}

/// A build without clouds cannot tell which servers it means.
#[cfg(not(feature = "clouds"))]
fn is_named(_: &str, server: &Endpoint) -> Result<bool> {
    let cause = format!("a proxy is set for {}, and this build does not read no_proxy", server.authority());
    Err(Error::new(Kind::Usage, cause)
        .with_hint("build it with the feature `clouds`, or unset no_proxy or the proxy for this program"))
}

/// The host part of an entry that applies to this port.
#[cfg(feature = "clouds")]
fn at_port(entry: &str, port: u16) -> Option<&str> {
    let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
    match entry.rsplit_once(':') {
        Some((host, only)) if !host.contains(':') => (only.parse() == Ok(port)).then_some(host),
        _ => Some(entry),
    }
}

/// How a server is reached.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    pub(crate) tls: Option<TlsClient>,
    /// The proxy between here and the server, where there is one.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// What signs; `None` where requests go unsigned.
    pub(crate) authority: Option<Arc<Authority>>,
    /// How long the server is waited for while it serves nothing; `None` leaves it to the attempts.
    pub(crate) wait: Option<Duration>,
    /// Where the server says that the bucket is instead.
    pub(crate) moved: Mutex<Option<Moved>>,
}

impl Route {
    /// A route without TLS, proxy and signatures.
    pub(crate) fn new(endpoint: Endpoint) -> Route {
        Route { endpoint, tls: None, proxy: None, authority: None, wait: None, moved: Mutex::default() }
    }

    /// Names the data set below these prefixes, at this server, verified or not.
    pub(crate) fn source_id(&self, prefixes: &[String]) -> SourceId {
        let source = Source { endpoint: self.endpoint.clone(), prefixes: prefixes.to_vec() };
        SourceId::of(&source, self.tls.as_ref().is_none_or(TlsClient::verifies))
    }

    /// Where the bucket is according to the last redirect.
    pub(crate) fn moved(&self) -> MutexGuard<'_, Option<Moved>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(environment: &[(&str, &str)], server: &str) -> Option<String> {
        let variables = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let proxy = proxy_for(&Environment::given(variables), &server.parse().unwrap()).unwrap();
        proxy.map(|proxy| proxy.to_string())
    }

    #[test]
    fn each_scheme_has_its_variables_and_small_letters_come_first() {
        let all = [
            ("HTTPS_PROXY", "secure-upper:1"),
            ("http_proxy", "http://plain:2"),
            ("HTTP_PROXY", "plain-upper:3"),
            ("all_proxy", "all:4/"),
        ];
        assert_eq!(chosen(&all, "https://h/b").as_deref(), Some("secure-upper:1 (HTTPS_PROXY)"));
        assert_eq!(chosen(&all, "http://h/b").as_deref(), Some("plain:2 (http_proxy)"));
        assert_eq!(chosen(&all[2..], "https://h/b").as_deref(), Some("all:4 (all_proxy)"));
        assert_eq!(chosen(&all[2..], "http://h/b").as_deref(), Some("plain-upper:3 (HTTP_PROXY)"));
        assert_eq!(chosen(&all, "/folder/"), None);
        assert_eq!(
            chosen(&[("https_proxy", ""), ("HTTPS_PROXY", "h")], "https://h/b").as_deref(),
            Some("h:80 (HTTPS_PROXY)")
        );
        assert_eq!(chosen(&[], "https://h/b"), None);
    }

    #[test]
    fn what_a_request_to_a_web_server_can_set_is_passed_over() {
        let given = [("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "evil:1")];
        assert_eq!(chosen(&given, "http://h/b"), None);
        assert_eq!(chosen(&given[1..], "http://h/b").as_deref(), Some("evil:1 (HTTP_PROXY)"));
    }

    #[test]
    fn exceptions_are_names_domains_addresses_and_networks() {
        for (list, spared, asked) in [
            ("bucket.corp", "bucket.corp", "other.corp"),
            ("bucket.corp", "deep.bucket.corp", "notbucket.corp"),
            (".corp, other", "bucket.corp", "corp.example"),
            ("10.0.0.0/8", "10.1.2.3", "11.1.2.3"),
            ("fd00::/8", "[fd00::1]", "[fe00::1]"),
            ("*.corp", "bucket.corp", "corp.example"),
            ("other  bucket.corp", "bucket.corp", "third.corp"),
            ("bucket.corp:9000", "bucket.corp", "other.corp"),
            ("*", "anything", ""),
        ] {
            let given = [("https_proxy", "p:1"), ("NO_PROXY", list)];
            assert_eq!(chosen(&given, &format!("https://{spared}:9000/b")), None, "{list}: {spared}");
            if !asked.is_empty() {
                assert!(chosen(&given, &format!("https://{asked}:9000/b")).is_some(), "{list}: {asked}");
            }
        }
        let elsewhere = [("https_proxy", "p:1"), ("no_proxy", "bucket.corp:9001")];
        assert!(chosen(&elsewhere, "https://bucket.corp:9000/b").is_some());
        let both = [("https_proxy", "p:1"), ("no_proxy", "small"), ("NO_PROXY", "capital")];
        assert!(chosen(&both, "https://small/b").is_none() && chosen(&both, "https://capital/b").is_some());
    }

    #[test]
    fn this_machine_is_reached_directly() {
        for host in ["localhost", "bucket.localhost", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert_eq!(chosen(&[("all_proxy", "p:1")], &format!("http://{host}:9000/b")), None, "{host}");
        }
        // A variable that is not used may hold anything.
        assert_eq!(chosen(&[("all_proxy", "socks5://p:1")], "http://localhost/b"), None);
    }
}
