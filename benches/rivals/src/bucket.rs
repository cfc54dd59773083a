//! Where the objects are: `http[s]://HOST:PORT/BUCKET/…` taken apart, and the path of each object on that server.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, anyhow, ensure};
use hyper::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// RFC 3986 unreserved characters and slashes stay as they are.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bucket {
    pub(crate) tls: bool,
    /// Host name or address; an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Its name, decoded; empty for a plain web server.
    pub(crate) name: String,
    /// What stands before every key of the manifest, decoded: empty, or with a slash at its end.
    pub(crate) prefix: String,
    /// A PEM file of the authorities to trust instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
}

impl FromStr for Bucket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Bucket> {
        let wrong = |why: &str| anyhow!("URI `{text}`: {why}; write http://HOST:PORT/BUCKET/");
        let uri: Uri = text.parse().map_err(|e| wrong(&format!("{e}")))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it is neither http nor https")),
        };
        let host = uri.host().ok_or_else(|| wrong("it names no host"))?;
        let path = uri.path().trim_start_matches('/');
        let path = percent_decode_str(path).decode_utf8().map_err(|_| wrong("its path is not UTF-8"))?;
        let (name, prefix) = path.split_once('/').unwrap_or((&path, ""));
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Bucket {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            name: name.to_owned(),
            prefix: format!("{prefix}{slash}"),
            ca_file: None,
        })
    }
}

impl Bucket {
    /// `HOST:PORT`, an IPv6 address in brackets.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// `http://HOST:PORT`.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// The whole key of an object of the manifest, within the bucket.
    pub(crate) fn whole_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The path of an object of the manifest in a request line.
    pub(crate) fn path(&self, key: &str) -> String {
        let bucket = utf8_percent_encode(&self.name, &PLAIN);
        let slash = if self.name.is_empty() { "" } else { "/" };
        format!("/{bucket}{slash}{}", utf8_percent_encode(&self.whole_key(key), &PLAIN))
    }
}

/// One object of the data set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) size: usize,
}

/// Reads a manifest.
pub(crate) fn read(path: &Path) -> Result<Vec<Object>> {
    let named = || format!("manifest {}", path.display());
    parse(&std::fs::read_to_string(path).with_context(named)?).with_context(named)
}

fn parse(text: &str) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let object = line
            .split_once('\t')
            .filter(|(key, _)| !key.is_empty())
            .and_then(|(key, size)| Some(Object { key: key.to_owned(), size: size.parse().ok()? }));
        objects.push(object.with_context(|| format!("line {} is not key<TAB>size", index + 1))?);
    }
    ensure!(!objects.is_empty(), "it names no object");
    Ok(objects)
}

/// The order of one pass: a shuffle of `0..count` that is a function of its arguments.
pub(crate) fn order(count: usize, seed: u64, pass: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).take(count).collect();
    let mut state = seed ^ pass.wrapping_mul(0xA076_1D64_78BD_642F);
    for last in (1..count).rev() {
        // SplitMix64; the bias of the modulus does not matter to a reading order.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        order.swap(last, ((word ^ (word >> 31)) % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_taken_apart_and_put_together() {
        let bucket: Bucket = "https://[::1]:8443/my%20set/train/".parse().unwrap();
        assert_eq!((bucket.tls, &*bucket.host, bucket.port, &*bucket.name), (true, "::1", 8443, "my set"));
        assert_eq!(bucket.endpoint(), "https://[::1]:8443");
        assert_eq!(bucket.path("ä.jpg"), "/my%20set/train/%C3%A4.jpg");
        assert_eq!("http://h/b/train".parse::<Bucket>().unwrap().whole_key("x"), "train/x");
        let plain: Bucket = "http://host/".parse().unwrap();
        assert_eq!((plain.port, plain.path("a/b")), (80, "/a/b".to_owned()));
    }

    #[test]
    fn lines_become_objects_or_say_where_they_fail() {
        let two = parse("a/b.jpg\t5\n\nä\t0\n").unwrap();
        assert_eq!(two, [Object { key: "a/b.jpg".into(), size: 5 }, Object { key: "ä".into(), size: 0 }]);
        assert_eq!(parse("a\t1\nb 2\n").unwrap_err().to_string(), "line 2 is not key<TAB>size");
        assert_eq!(parse("a\t-1\n").unwrap_err().to_string(), "line 1 is not key<TAB>size");
        assert_eq!(parse("\n").unwrap_err().to_string(), "it names no object");
    }

    #[test]
    fn an_order_is_a_shuffle_and_every_pass_has_its_own() {
        let (first, second) = (order(100, 7, 0), order(100, 7, 1));
        assert_eq!(first, order(100, 7, 0));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..100));
        }
        assert_eq!(order(1, 7, 3), [0]);
    }
}
