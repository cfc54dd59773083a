//! HTTP proxies: parsing their URLs, writing requests to them, and interpreting their responses.
//!
//! To a server over TLS the proxy opens a tunnel (CONNECT; RFC 9110, 9.3.6) and sees only ciphertext; a request to a server without TLS
//! is sent to the proxy in absolute form, with the server's name in it (RFC 9112, 3.2.2).

use crate::base64;
use crate::escape::decode;
use crate::sign::spare;
use crate::uri::{Endpoint, host_of_server};
use core::fmt;
use fuelrail_base::limits::{RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX};
use fuelrail_base::{Error, Kind, Result};
use zeroize::Zeroizing;

/// A proxy named by an environment variable. User and password are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
    /// The environment variable that names it.
    pub variable: String,
    /// The whole `Proxy-Authorization` line; empty without a user.
    authorization: Zeroizing<Vec<u8>>,
}

const FORM: &str = "write http://[USER:PASSWORD@]HOST:PORT, or name the server's host in NO_PROXY";
/// The cause when the proxy closes the connection before its response.
pub const HUNG_UP: &str = "it closed the connection without a response";
const AUTHORIZATION: &[u8] = b"Proxy-Authorization: Basic ";

impl Proxy {
    /// Parses the value of `variable`: `[http://][USER[:PASSWORD]@]HOST[:PORT]`, with reserved characters in user and password
    /// percent-encoded. The default port is 80.
    ///
    /// # Errors
    /// [`Kind::Usage`] for anything else. The error names the variable and repeats nothing of its value.
    pub fn parse(variable: &str, text: &str) -> Result<Proxy> {
        let wrong = |why: &str| Error::new(Kind::Usage, format!("{variable}: {why}")).with_hint(FORM);
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(wrong("only plain HTTP proxies are supported, not HTTPS or SOCKS"));
        }
        // People forget to percent-encode passwords: the last '@' ends user and password.
        let (user, authority) = rest.rsplit_once('@').map_or((None, rest), |(user, host)| (Some(user), host));
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        // The error about the host is dropped: it could show half of a password.
        let server = host_of_server("http", authority);
        let (_, host, port) = server.map_err(|_| wrong("the host or port is malformed"))?;
        let mut authorization = Zeroizing::new(Vec::new());
        if let Some(user) = user {
            let (user, password) = user.split_once(':').unwrap_or((user, ""));
            let decoded = |text| {
                let flawed = |_| wrong("the user or password is not valid percent-encoded UTF-8");
                decode(text).map(Zeroizing::new).map_err(flawed)
            };
            let pair = Zeroizing::new(format!("{}:{}", *decoded(user)?, *decoded(password)?));
            authorization.extend_from_slice(AUTHORIZATION);
            base64::push(&mut authorization, pair.as_bytes());
            authorization.extend_from_slice(b"\r\n");
        }
        Ok(Proxy { host, port, variable: variable.into(), authorization })
    }

    /// Host and port as in a URI: an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        with_port(&self.host, self.port)
    }

    /// The value of the `Proxy-Authorization` line; `None` without a user.
    pub fn authorization(&self) -> Option<&[u8]> {
        self.authorization.strip_prefix(b"Proxy-Authorization: ")?.strip_suffix(b"\r\n")
    }

    /// Appends the CONNECT request for a tunnel to `server`.
    pub fn push_connect(&self, server: &Endpoint, out: &mut Vec<u8>) {
        let target = with_port(&server.host, server.port);
        let agent = concat!("User-Agent: fuelrail/", env!("CARGO_PKG_VERSION"), "\r\n");
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{agent}");
        for piece in [request.as_bytes(), &self.authorization, b"\r\n"] {
            out.extend_from_slice(piece);
        }
    }

    /// Checks the bytes received so far of the CONNECT response: true once the tunnel is open, false while the response is incomplete.
    ///
    /// # Errors
    /// [`Kind::Denied`] when the proxy refuses or wants authentication, [`Kind::Network`] when it cannot reach the server,
    /// [`Kind::Protocol`] when the bytes are not HTTP, or more follow the response: over TLS the client speaks first.
    pub fn judge(&self, server: &Endpoint, answer: &[u8]) -> Result<bool> {
        let mut at = 0;
        loop {
            let mut lines = [httparse::EMPTY_HEADER; RESPONSE_HEADERS_MAX];
            let mut response = httparse::Response::new(&mut lines);
            let (len, status) = match response.parse(&answer[at..]) {
                Ok(httparse::Status::Complete(len)) => (len, response.code.unwrap_or_default()),
                Ok(httparse::Status::Partial) if answer.len() < RESPONSE_HEAD_BYTES_MAX => return Ok(false),
                Ok(httparse::Status::Partial) => {
                    return Err(self.error(Kind::Protocol, "its response header is too long"));
                }
                Err(_) => return Err(self.error(Kind::Protocol, "its response is not HTTP")),
            };
            at += len;
            match status {
                // Lengths mean nothing here (RFC 9110, 9.3.6): what follows would be the server's.
                200..=299 if at == answer.len() => return Ok(true),
                200..=299 => return Err(self.error(Kind::Protocol, "it sent data after the CONNECT response")),
                100..=199 => {}
                _ => return Err(self.refusal(status, server)),
            }
        }
    }

    /// Rewrites a finished plain-HTTP request to the server `host` (its `Host` line) into absolute form, for the proxy. A signature stays
    /// valid: it covers the path alone. Allocates nothing if `request` has the capacity.
    ///
    /// # Panics
    /// If this crate did not write `request`.
    pub fn address(&self, host: &str, request: &mut Vec<u8>) {
        let path = request.iter().position(|byte| *byte == b' ').expect("a request has a method") + 1;
        let end = request.len() - 2;
        request.splice(end..end, self.authorization.iter().copied());
        request.splice(path..path, b"http://".iter().chain(host.as_bytes()).copied());
    }

    /// The error for an error status of the proxy itself.
    pub fn refusal(&self, status: u16, server: &Endpoint) -> Error {
        let target = with_port(&server.host, server.port);
        let variable = &self.variable;
        match status {
            // Some proxies send 401, which is for servers.
            401 | 407 if self.authorization.is_empty() => self
                .error(Kind::Denied, &format!("proxy authentication required ({status})"))
                .with_hint(format!("put USER:PASSWORD@ before the host in {variable}")),
            401 | 407 => {
                self.error(Kind::Denied, &format!("proxy authentication failed ({status})")).with_hint(format!(
                    "check the user and password in {variable}; percent-encode characters other than letters and digits"
                ))
            }
            429 => self.error(Kind::Throttled, "too many requests (429)"),
            408 | 500..=599 => self
                .error(Kind::Network, &format!("it cannot reach {target} ({status})"))
                .with_hint(format!("check the URI's host, and that {variable} names the right proxy for it")),
            400..=499 => self
                .error(Kind::Denied, &format!("it refuses connections to {target} ({status})"))
                .with_hint("ask the proxy's administrator to allow it, or name the host in NO_PROXY"),
            _ => self.error(Kind::Protocol, &format!("unexpected status {status} in response to CONNECT")),
        }
    }

    /// The same error, cut before any echo of the proxy credentials: servers may repeat request headers in error documents.
    pub fn spared(&self, error: Error) -> Error {
        let line = self.authorization.strip_prefix(AUTHORIZATION).unwrap_or_default();
        let kept = spare(error.cause(), core::str::from_utf8(line).unwrap_or_default());
        if kept.len() == error.cause().len() {
            return error;
        }
        let cause = format!("{kept}… (the rest repeats the proxy credentials)");
        error.because(cause)
    }

    /// The error when the tunnel to `server` fails for a reason other than the proxy's response.
    pub fn tunnel_failed(&self, server: &Endpoint, kind: Kind, why: &dyn fmt::Display) -> Error {
        self.error(kind, &format!("could not open a CONNECT tunnel to {}: {why}", server.authority()))
    }

    /// An error whose cause starts with the proxy's name.
    pub fn error(&self, kind: Kind, why: &str) -> Error {
        Error::new(kind, format!("the proxy {self}: {why}"))
            .with_hint(format!("check {}; hosts named in NO_PROXY are reached without a proxy", self.variable))
    }
}

/// The error for status 407 of a plain-HTTP proxy, where its name is not at hand.
pub fn authentication_required() -> Error {
    Error::new(Kind::Denied, "proxy authentication required (407)")
        .with_hint("put USER:PASSWORD@ before the proxy's host in http_proxy")
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.authority(), self.variable)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: &str = "http://us%3Aer:m%20arked@Proxy.corp:3128/";

    fn server() -> Endpoint {
        "https://bucket.example/b".parse().unwrap()
    }

    fn asked(proxy: &Proxy, server: &str) -> String {
        let mut out = Vec::new();
        proxy.push_connect(&server.parse().unwrap(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn is_read_as_people_write_it() {
        for (text, host, port) in [
            ("proxy.corp:3128", "proxy.corp", 3128),
            ("HTTP://proxy.corp/", "proxy.corp", 80),
            ("http://user@10.0.0.1:1", "10.0.0.1", 1),
            ("http://user:p@ss@[fd00::1]:8080", "fd00::1", 8080),
            (MARKED, "proxy.corp", 3128),
        ] {
            let proxy = Proxy::parse("https_proxy", text).unwrap();
            assert_eq!((proxy.host.as_str(), proxy.port), (host, port), "{text}");
        }
        let of = |text| Proxy::parse("x", text).unwrap().authorization().map(<[u8]>::to_vec);
        assert_eq!(of("http://h"), None);
        // Aladdin's, of RFC 7617.
        assert_eq!(of("http://Aladdin:open%20sesame@h").unwrap(), b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(of("user@h").unwrap(), [b"Basic ", base64::encode(b"user:").as_bytes()].concat());
        assert_eq!(of("user:p@ss@h").unwrap(), [b"Basic ", base64::encode(b"user:p@ss").as_bytes()].concat());
    }

    #[test]
    fn user_and_password_are_never_printed() {
        let proxy = Proxy::parse("https_proxy", MARKED).unwrap();
        assert_eq!(format!("{proxy}"), "proxy.corp:3128 (https_proxy)");
        assert_eq!(format!("{proxy:?}"), "Proxy(proxy.corp:3128 (https_proxy))");
        for text in
            ["ftp://marked@h", "http://marked:marked@", "marked@h h", "http://marked:x@h:0", "http://%q0marked@h"]
        {
            let error = Proxy::parse("HTTPS_PROXY", text).unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(error.kind() == Kind::Usage && told.contains("HTTPS_PROXY"), "{told}");
            assert!(!told.contains("marked"), "{told}");
        }
    }

    #[test]
    fn a_tunnel_is_requested_by_host_and_port() {
        let agent = concat!("User-Agent: fuelrail/", env!("CARGO_PKG_VERSION"));
        let known = Proxy::parse("x", "http://Aladdin:open%20sesame@h").unwrap();
        assert_eq!(
            asked(&known, "https://[fd00::1]:9000/b"),
            format!(
                "CONNECT [fd00::1]:9000 HTTP/1.1\r\nHost: [fd00::1]:9000\r\n{agent}\r\n\
                 Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"
            )
        );
    }

    #[test]
    fn the_response_is_judged_once_complete_whatever_lengths_it_names() {
        let proxy = Proxy::parse("https_proxy", "http://p:1").unwrap();
        let open = b"HTTP/1.1 103 Wait\r\nX: y\r\n\r\nHTTP/1.0 200 Connection established\r\nContent-Length: 9\r\n\r\n";
        for cut in 0..open.len() {
            assert!(!proxy.judge(&server(), &open[..cut]).unwrap(), "{cut}");
        }
        assert!(proxy.judge(&server(), open).unwrap());
        assert!(proxy.judge(&server(), b"HTTP/1.1 204 x\r\n\r\n").unwrap());
        let error = proxy.judge(&server(), &[open, &b"m"[..]].concat()).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol, "{error}");
    }

    #[test]
    fn refusals_say_what_to_do() {
        let known = Proxy::parse("https_proxy", "http://user:marked@p:1").unwrap();
        let plain = Proxy::parse("https_proxy", "http://p:1").unwrap();
        for (proxy, status, kind, told) in [
            (&plain, 407, Kind::Denied, "put USER:PASSWORD@ before the host in https_proxy"),
            (&known, 407, Kind::Denied, "check the user and password in https_proxy"),
            (&known, 401, Kind::Denied, "proxy authentication failed (401)"),
            (&known, 403, Kind::Denied, "refuses connections to bucket.example:443"),
            (&known, 405, Kind::Denied, "NO_PROXY"),
            (&known, 429, Kind::Throttled, "too many requests"),
            (&known, 408, Kind::Network, "cannot reach bucket.example:443"),
            (&known, 502, Kind::Network, "cannot reach bucket.example:443"),
            (&known, 302, Kind::Protocol, "302"),
        ] {
            let answer = format!("HTTP/1.1 {status} Told\r\n\r\nand a page about it");
            let error = proxy.judge(&server(), answer.as_bytes()).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{status}: {text}");
            assert!(text.contains(told) && text.contains("proxy p:1") && !text.contains("marked"), "{status}: {text}");
        }
        for answer in [&b"SSH-2.0-OpenSSH_9\r\n"[..], &[b'x'; 64], &[0x15, 3, 1, 0, 2, 2, 70]] {
            assert_eq!(plain.judge(&server(), answer).unwrap_err().kind(), Kind::Protocol);
        }
        let endless = [&b"HTTP/1.1 200 OK\r\nX: "[..], &vec![b'x'; RESPONSE_HEAD_BYTES_MAX]].concat();
        assert_eq!(plain.judge(&server(), &endless).unwrap_err().kind(), Kind::Protocol);
    }

    #[test]
    fn echoed_credentials_are_cut() {
        let proxy = Proxy::parse("x", "http://Aladdin:open%20sesame@h").unwrap();
        let told = |cause: &str| proxy.spared(Error::new(Kind::Denied, cause)).cause().to_owned();
        for end in ["QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "QWxhZGRpbjpvcGV"] {
            let said = told(&format!("you sent Basic {end}"));
            assert!(said.starts_with("you sent Basic … (the rest"), "{said}");
        }
        assert_eq!(told("no"), "no");
        let unknown = Proxy::parse("x", "http://h").unwrap();
        assert_eq!(unknown.spared(Error::new(Kind::Denied, "no")).cause(), "no");
    }

    #[test]
    fn absolute_form_names_the_server() {
        let server: Endpoint = "http://bucket.example:9000/b".parse().unwrap();
        let mut request = Vec::new();
        crate::write_get(&mut request, &server.authority(), "/b/k", None, None).unwrap();
        let text = String::from_utf8(request.clone()).unwrap();
        Proxy::parse("x", "http://p").unwrap().address(&server.authority(), &mut request);
        let named = text.replace("GET /b/k", "GET http://bucket.example:9000/b/k");
        assert_eq!(String::from_utf8(request.clone()).unwrap(), named);
        let mut request = text.into_bytes();
        Proxy::parse("x", "http://Aladdin:open%20sesame@p").unwrap().address(&server.authority(), &mut request);
        let with_line =
            format!("{}Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n", &named[..named.len() - 2]);
        assert_eq!(String::from_utf8(request).unwrap(), with_line);
    }
}
