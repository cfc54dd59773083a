//! Where a data set lives: `http://host:port/bucket/prefix`, or `https`, as people type it, and the request paths built from it.

use crate::escape::{Flaw, decode, push_path};
use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;
use fuelrail_base::{Error, Kind, Result, limits};

/// How the server is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scheme {
    /// Plain HTTP/1.1 over TCP.
    Http,
    /// HTTP/1.1 over TLS over TCP.
    Https,
}

impl Scheme {
    /// The word before `://`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port of a URI that names none.
    #[must_use]
    pub fn port_default(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// A server, a bucket on it, and the prefix that selects the data set's objects.
///
/// Parsed from `http://HOST[:PORT]/BUCKET/PREFIX`, or with `https`. Bucket and prefix are percent-decoded once; blanks, plus signs and
/// any other Unicode may also stand as they are, `?`, `#` and a percent sign are written `%3F`, `%23` and `%25`. An
/// empty bucket (`http://host/`, or `http://host//prefix`) stands for a plain web server without buckets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// How the server is spoken to.
    pub scheme: Scheme,
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port; 80 when the URI names none, 443 under https.
    pub port: u16,
    /// The bucket, decoded. May be empty.
    pub bucket: String,
    /// Start of every key of the data set, decoded. May be empty.
    pub prefix: String,
}

const FORM: &str = "write http://HOST:PORT/BUCKET/PREFIX, or https";
const HOST_BYTES_MAX: usize = 253;

impl Endpoint {
    /// What stands in the `Host` line: the port only when it is not the scheme's own, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.port_default() { host } else { format!("{host}:{}", self.port) }
    }

    /// The path of the object `key` (the whole key, prefix included), escaped for a request line.
    ///
    /// RFC 3986 unreserved characters and slashes stay, all else becomes `%XX`. Dot segments stay too: to a bucket
    /// `a/../b` is a key like any other.
    #[must_use]
    pub fn object_path(&self, key: &str) -> String {
        let mut path = String::new();
        self.push_object_path(&mut path, key);
        path
    }

    /// Appends what [`Endpoint::object_path`] returns.
    pub fn push_object_path(&self, out: &mut String, key: &str) {
        out.push('/');
        if !self.bucket.is_empty() {
            push_path(out, &self.bucket);
            out.push('/');
        }
        push_path(out, key);
    }

    /// The path of the bucket itself: `/bucket`, or `/` without a bucket.
    #[must_use]
    pub fn bucket_path(&self) -> String {
        let mut path = String::from("/");
        push_path(&mut path, &self.bucket);
        path
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    /// # Errors
    /// [`Kind::Usage`] saying what to write. The text never repeats user info or a query: they may hold secrets.
    fn from_str(uri: &str) -> Result<Endpoint> {
        if uri.chars().any(char::is_control) {
            return Err(usage("the URI holds a control character", "write it as %XX if a key really contains it"));
        }
        let (scheme, rest) = scheme_and_rest(uri)?;
        if rest.contains('?') {
            return Err(usage("the URI holds a query ('?')", "leave it out, or write %3F if a key contains it"));
        }
        if rest.contains('#') {
            return Err(usage("the URI holds a fragment ('#')", "leave it out, or write %23 if a key contains it"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host_and_port(authority)?;
        let port = port.unwrap_or(scheme.port_default());
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let (bucket, prefix) = (decoded(bucket, "bucket")?, decoded(prefix, "prefix")?);
        if bucket.contains('/') {
            return Err(usage("the bucket's name holds a slash ('%2F')", FORM));
        }
        if prefix.len() > limits::KEY_BYTES_MAX || bucket.len() > limits::KEY_BYTES_MAX {
            let cause = format!("bucket or prefix is longer than {} bytes", limits::KEY_BYTES_MAX);
            return Err(usage(&cause, "no object key is that long: shorten it"));
        }
        Ok(Endpoint { scheme, host, port, bucket, prefix })
    }
}

impl fmt::Display for Endpoint {
    /// The URI, escaped; parsing it gives the same endpoint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut path = self.bucket_path();
        if !self.prefix.is_empty() {
            path.push('/');
            push_path(&mut path, &self.prefix);
        }
        write!(f, "{}://{}{path}", self.scheme.word(), self.authority())
    }
}

fn usage(cause: &str, cure: &str) -> Error {
    Error::new(Kind::Usage, cause).cure(cure)
}

fn scheme_and_rest(uri: &str) -> Result<(Scheme, &str)> {
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Err(usage("the URI has no scheme", FORM));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((Scheme::Http, rest)),
        "https" => Ok((Scheme::Https, rest)),
        "s3" | "gs" => Err(usage(&format!("'{}' names no server", scheme.escape_debug()), FORM)),
        _ => Err(usage("the URI's scheme is neither http nor https", FORM)),
    }
}

/// The port is `None` when the URI names none.
fn host_and_port(authority: &str) -> Result<(String, Option<u16>)> {
    if authority.contains('@') {
        return Err(usage("the URI holds user information before '@'", "leave it out: credentials never go in a URI"));
    }
    if let Some(inner) = authority.strip_prefix('[') {
        let (address, port) = inner.split_once(']').ok_or_else(|| usage("'[' without ']' in the URI's host", FORM))?;
        if address.parse::<Ipv6Addr>().is_err() {
            let cause = format!("'{}' is not an IPv6 address", address.escape_debug());
            return Err(usage(&cause, "write it as [::1], without a zone"));
        }
        return Ok((address.to_ascii_lowercase(), port_of(port)?));
    }
    let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
    if port.matches(':').count() > 1 {
        return Err(usage(
            "the URI's host holds several colons",
            "write an IPv6 address in brackets: http://[::1]:80/",
        ));
    }
    if host.is_empty() {
        return Err(usage("the URI names no host", FORM));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.len() > HOST_BYTES_MAX || !host.bytes().all(fits) {
        let cause = format!("'{}' is not a host name", host.chars().take(64).collect::<String>().escape_debug());
        return Err(usage(&cause, "use letters, digits, '-', '.' and '_' only"));
    }
    Ok((host.to_ascii_lowercase(), port_of(port)?))
}

/// The port behind a host: `""` or `":8080"`.
fn port_of(text: &str) -> Result<Option<u16>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.strip_prefix(':').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let port = digits.and_then(|digits| digits.parse::<u16>().ok()).filter(|port| *port > 0);
    port.map(Some).ok_or_else(|| usage("the URI's port is not a number from 1 to 65535", FORM))
}

fn decoded(text: &str, part: &str) -> Result<String> {
    decode(text).map_err(|flaw| match flaw {
        Flaw::Percent => usage(
            &format!("a '%' in the {part} is not followed by two hexadecimal digits"),
            "write %25 for a percent sign",
        ),
        Flaw::Utf8 => usage(&format!("the {part} is not UTF-8 once decoded"), "object keys are UTF-8 text"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(uri: &str) -> Endpoint {
        uri.parse().unwrap_or_else(|error| panic!("{uri}: {error}"))
    }

    #[test]
    fn takes_uris_apart() {
        for (uri, host, port, bucket, prefix) in [
            ("http://h:9000/b/train/", "h", 9000, "b", "train/"),
            ("HTTP://H.Example.org/b", "h.example.org", 80, "b", ""),
            ("http://10.0.0.1", "10.0.0.1", 80, "", ""),
            ("http://h/", "h", 80, "", ""),
            ("http://h//sub/x", "h", 80, "", "sub/x"),
            ("http://[::1]:8080/b/p", "::1", 8080, "b", "p"),
            ("http://[FE80::2]/b", "fe80::2", 80, "b", ""),
            ("http://h/b/a b/é+%25%2f", "h", 80, "b", "a b/é+%/"),
            ("http://h/b//lead", "h", 80, "b", "/lead"),
            ("https://h/b", "h", 443, "b", ""),
            ("HTTPS://h:80/b", "h", 80, "b", ""),
        ] {
            let e = parsed(uri);
            assert_eq!((&*e.host, e.port, &*e.bucket, &*e.prefix), (host, port, bucket, prefix), "{uri}");
            assert_eq!(parsed(&e.to_string()), e, "{uri} prints as {e}");
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (uri, says) in [
            ("", "no scheme"),
            ("h:80/b", "no scheme"),
            ("s3://b/p", "names no server"),
            ("ftp://h/b", "neither http nor https"),
            ("http://", "no host"),
            ("http:///b", "no host"),
            ("http://:80/b", "no host"),
            ("http://u:secret@h/b", "user information"),
            ("http://h/b?X-Amz-Signature=secret", "query"),
            ("http://h/b#x", "fragment"),
            ("http://h:/b", "port"),
            ("http://h:0/b", "port"),
            ("http://h:65536/b", "port"),
            ("http://h:+80/b", "port"),
            ("http://::1/b", "brackets"),
            ("http://[::1/b", "']'"),
            ("http://[::1%25eth0]/b", "IPv6"),
            ("http://[::1]x/b", "port"),
            ("http://a b/b", "host name"),
            ("http://h/b/%", "%25"),
            ("http://h/b/%ff", "UTF-8"),
            ("http://h/b%2Fc/p", "slash"),
            ("http://h/b/a\r\nX: y", "control"),
        ] {
            let error = uri.parse::<Endpoint>().unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{uri}");
            let text = error.to_string();
            assert!(text.contains(says), "{uri}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
        let long = format!("http://h/b/{}", "p".repeat(limits::KEY_BYTES_MAX + 1));
        assert!(long.parse::<Endpoint>().unwrap_err().to_string().contains("1024"));
    }

    #[test]
    fn object_paths_are_escaped() {
        let e = parsed("http://h/my bucket/p");
        assert_eq!(e.object_path("a b/c+d%é?#&~"), "/my%20bucket/a%20b/c%2Bd%25%C3%A9%3F%23%26~");
        assert_eq!(e.object_path("/lead/../x"), "/my%20bucket//lead/../x");
        assert_eq!(parsed("http://h/").object_path("k/1"), "/k/1");
        let mut text = String::from("GET ");
        e.push_object_path(&mut text, "k");
        assert_eq!(text, "GET /my%20bucket/k");
        assert_eq!(e.object_path(&"ü".repeat(512)).len(), "/my%20bucket/".len() + 512 * 6);
    }

    #[test]
    fn authority_names_the_port_when_unusual() {
        assert_eq!(parsed("http://h/b").authority(), "h");
        assert_eq!(parsed("http://[::1]:81/b").authority(), "[::1]:81");
        assert_eq!(parsed("https://h:443/b").authority(), "h");
        assert_eq!(parsed("https://h:80/b").authority(), "h:80");
        assert_eq!(parsed("https://h/b/p").to_string(), "https://h/b/p");
    }
}
