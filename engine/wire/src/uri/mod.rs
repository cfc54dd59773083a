//! Where a data set lives: `s3://`, `gs://`, `az://`, `http://` … as people type it, and the hosts and paths made from it.

mod cloud;
mod parse;
#[cfg(test)]
mod tests;

pub use cloud::{Cloud, REGION_DEFAULT, Source};
pub(crate) use parse::host_of_server;
pub use parse::{expand, without_secrets};

use crate::escape::push_path;
use core::fmt;
use fuelrail_base::{Error, Kind};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// What follows `ACCOUNT.blob.` and `ACCOUNT.dfs.` in Azure's hosts: the public cloud, China, the US government, Germany.
const AZURE_SUFFIXES: [&str; 4] =
    ["core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "core.cloudapi.de"];

/// How the server is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scheme {
    /// Plain HTTP/1.1 over TCP.
    Http,
    /// HTTP/1.1 over TLS over TCP.
    Https,
    /// Not at all: it is a folder of this machine.
    File,
}

fuelrail_base::named!(Scheme, "a scheme": Http = "http", Https = "https", File = "file");

impl Scheme {
    /// The port of a URI that names none.
    #[must_use]
    pub fn port_default(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
            Scheme::File => 0,
        }
    }
}

/// Whose requests and documents the server knows. Whole objects and ranges are asked for alike everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dialect {
    /// Amazon S3, and all that are made like it. Plain web servers pass for it, with a manifest instead of a listing.
    S3,
    /// Google Cloud Storage, through its XML interface: listings are S3's, signatures and checksums are its own.
    Gcs,
    /// Azure Blob Storage. A bucket is a container there.
    Azure,
}

fuelrail_base::named!(Dialect, "a dialect": S3 = "s3", Gcs = "gcs", Azure = "azure");

impl Dialect {
    fn of(host: &str) -> Dialect {
        match host {
            "storage.googleapis.com" => Dialect::Gcs,
            _ => match host.split_once(".blob.") {
                Some((_, suffix)) if AZURE_SUFFIXES.contains(&suffix) => Dialect::Azure,
                _ => Dialect::S3,
            },
        }
    }
}

/// Where a request names its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Addressing {
    /// In front of the key: `http://host/bucket/key`.
    #[default]
    Path,
    /// In front of the host: `https://bucket.host/key`.
    VirtualHost,
}

fuelrail_base::named!(Addressing, "a way of addressing": Path = "path", VirtualHost = "virtual");

/// A server, a bucket on it, and the prefix that selects the data set's objects.
///
/// Parsed from `http://HOST[:PORT]/BUCKET/PREFIX`, or with `https`. Bucket and prefix are percent-decoded once; blanks, plus signs and
/// any other Unicode may also stand as they are, `?`, `#` and a percent sign are written `%3F`, `%23` and `%25`. An
/// empty bucket (`http://host/`, or `http://host//prefix`) stands for a plain web server without buckets.
///
/// Or from the clouds' own forms, where every character of a key stands for itself, as their tools read them:
/// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX` and
/// `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`. Which server they mean is settled by a [`Cloud`]; parsing alone takes the
/// default one.
///
/// Or from the path of a folder, `/FOLDER/` or `FOLDER/`, where every character stands for itself, too, or `file:///FOLDER/`, which is
/// percent-decoded: what is before the last slash is the bucket, and keys are paths within it. What has no scheme is a path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// How the server is spoken to.
    pub scheme: Scheme,
    /// Whose requests and documents it knows.
    pub dialect: Dialect,
    /// Where requests name the bucket.
    pub addressing: Addressing,
    /// Host name or address, with the bucket in front where it belongs there; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port; 80 when the URI names none, 443 under https.
    pub port: u16,
    /// What stands before the bucket in every path, decoded: the account on a server of many. Mostly empty.
    pub base: String,
    /// The bucket, decoded. May be empty. Of files, the folder.
    pub bucket: String,
    /// Start of every key of the data set, decoded. May be empty.
    pub prefix: String,
}

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
        for part in self.folders() {
            push_path(out, part);
            out.push('/');
        }
        push_path(out, key);
    }

    /// The path of the bucket itself: `/bucket`, or `/` where the path names none.
    #[must_use]
    pub fn bucket_path(&self) -> String {
        let mut path = String::new();
        for part in self.folders() {
            path.push('/');
            push_path(&mut path, part);
        }
        if path.is_empty() {
            path.push('/');
        }
        path
    }

    /// Appends the path of the file that is called `key` in this folder.
    pub fn push_file_path(&self, out: &mut String, key: &str) {
        out.push_str(&self.bucket);
        if !self.bucket.ends_with('/') {
            out.push('/');
        }
        out.push_str(key);
    }

    /// What stands before a key in a path.
    fn folders(&self) -> impl Iterator<Item = &str> {
        let bucket = if self.addressing == Addressing::Path { self.bucket.as_str() } else { "" };
        [self.base.as_str(), bucket].into_iter().filter(|part| !part.is_empty())
    }

    /// The region in the name of one of Amazon's hosts: `eu-west-1` of `s3.eu-west-1.amazonaws.com` and its kin.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        Some(&self.host[self.region_at()?])
    }

    /// The same bucket where Amazon says it is. `None` for other servers, whose regions have no names we know.
    #[must_use]
    pub fn in_region(&self, region: &str) -> Option<Endpoint> {
        let at = self.region_at()?;
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.is_empty() || !region.bytes().all(fits) {
            return None;
        }
        let host = format!("{}{region}{}", &self.host[..at.start], &self.host[at.end..]);
        Some(Endpoint { host, ..self.clone() })
    }

    fn region_at(&self) -> Option<core::ops::Range<usize>> {
        let rest = self.host.strip_suffix(".cn").unwrap_or(&self.host).strip_suffix(".amazonaws.com")?;
        let (before, _) = rest.rsplit_once('.')?;
        let service = before.strip_suffix(".dualstack").unwrap_or(before).rsplit('.').next()?;
        matches!(service, "s3" | "s3-fips").then_some(before.len() + 1..rest.len())
    }
}

/// What does not stand for itself in a `file://` URI.
const NOT_LITERAL: &AsciiSet = &CONTROLS.add(b'%');

impl fmt::Display for Endpoint {
    /// A URI that parses to the same endpoint: escaped, but for a bucket in the host of Amazon or Google, whose own form it has.
    /// What a [`Cloud`] changed is not in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme == Scheme::File {
            let mut path = String::new();
            self.push_file_path(&mut path, &self.prefix);
            return if path.starts_with('/') {
                write!(f, "file://{}", utf8_percent_encode(&path, NOT_LITERAL))
            } else {
                f.write_str(&path)
            };
        }
        if self.addressing == Addressing::VirtualHost {
            let word = if self.dialect == Dialect::Gcs { "gs" } else { "s3" };
            return write!(f, "{word}://{}/{}", self.bucket, self.prefix);
        }
        let mut path = self.bucket_path();
        if !self.prefix.is_empty() {
            path.push('/');
            push_path(&mut path, &self.prefix);
        }
        write!(f, "{}://{}{path}", self.scheme.word(), self.authority())
    }
}

fn usage(cause: &str, cure: &str) -> Error {
    Error::new(Kind::Usage, cause).with_hint(cure)
}
