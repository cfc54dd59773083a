//! The clouds' own forms: which server a bucket named by `s3://`, `gs://` or `az://` is on.

use super::parse::{FORM, decoded, host_name, plain, refuse_length, server, user_information, web_scheme};
use super::{AZURE_SUFFIXES, Addressing, Dialect, Endpoint, Scheme, expand, usage};
use core::net::Ipv4Addr;
use core::str::FromStr;
use fuelrail_base::{Error, Result};

/// The default region, as in Amazon's own tools.
pub const REGION_DEFAULT: &str = "us-east-1";

/// What a URI of a cloud's own form does not say. URIs that name a server themselves take nothing from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cloud {
    /// The region of a bucket on Amazon; empty takes [`REGION_DEFAULT`].
    pub region: String,
    /// The server used instead of the cloud's, `http[s]://HOST[:PORT]`: a private store, a gateway, an emulator. Empty takes the
    /// cloud's.
    pub endpoint: String,
    /// Where requests name the bucket. `None` puts it in front of the host where S3 wants that and the name allows it, and into the
    /// path on a server named by `endpoint`.
    pub addressing: Option<Addressing>,
}

/// A data set: the bucket it lies in and what its keys begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The bucket. Its prefix is what all prefixes have in common.
    pub endpoint: Endpoint,
    /// The starts of its keys, in order, none the start of another one.
    pub prefixes: Vec<String>,
}

impl Cloud {
    /// The region: the one set, or the default.
    #[must_use]
    pub fn region(&self) -> &str {
        if self.region.is_empty() { REGION_DEFAULT } else { &self.region }
    }

    /// What `uri` means, taken as it stands: braces are braces.
    ///
    /// # Errors
    /// [`Kind::Usage`] saying what to write. The text never repeats user info or a query: they may hold secrets.
    pub fn endpoint(&self, uri: &str) -> Result<Endpoint> {
        if uri.chars().any(char::is_control) {
            return Err(usage("the URI holds a control character", "write it as %XX if a key really contains it"));
        }
        if !self.endpoint.is_empty() {
            // Also where this URI does not use it: a password in it would be shown with the other settings.
            server(&self.endpoint)?;
        }
        let Some((word, rest)) = uri.split_once("://") else {
            return folder_of_path(uri);
        };
        if let Some(scheme) = web_scheme(word) {
            return plain(scheme, rest);
        }
        match word.to_ascii_lowercase().as_str() {
            "s3" | "s3a" => self.amazon(rest),
            "gs" | "gcs" => self.google(rest),
            "az" => self.azure(rest),
            "abfs" | "abfss" => self.data_lake(rest),
            "file" => folder_of_uri(rest),
            _ => Err(usage("the URI's scheme is none of http, https, s3, gs, az, abfss", FORM)),
        }
    }

    /// What `uri` means, with its braces expanded: the data set under all prefixes it stands for.
    ///
    /// # Errors
    /// As [`Cloud::endpoint`] and [`expand`]; `Usage` when the braces stand for several buckets.
    pub fn source(&self, uri: &str) -> Result<Source> {
        let mut all = Vec::new();
        for uri in expand(uri)? {
            all.push(self.endpoint(&uri)?);
        }
        let mut endpoint = all.first().cloned().ok_or_else(|| usage("the URI is empty", FORM))?;
        if endpoint.scheme == Scheme::File {
            return folder_source(&all);
        }
        let elsewhere = |other: &Endpoint| (Endpoint { prefix: endpoint.prefix.clone(), ..other.clone() }) != endpoint;
        if all.iter().any(elsewhere) {
            return Err(usage(
                "the braces of the URI expand to several buckets",
                "a data set is in one bucket: use braces after its name",
            ));
        }
        let mut prefixes: Vec<String> = all.into_iter().map(|one| one.prefix).collect();
        prefixes.sort_unstable();
        // In order, what a prefix covers stands right after it.
        prefixes.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        endpoint.prefix = common_start(&prefixes).to_owned();
        Ok(Source { endpoint, prefixes })
    }

    fn amazon(&self, rest: &str) -> Result<Endpoint> {
        let (bucket, prefix) = bucket_and_prefix(rest, "s3://BUCKET/PREFIX")?;
        if bucket.starts_with("arn:") || bucket.ends_with("--x-s3") {
            return Err(usage(
                "access points by ARN and directory buckets are not supported",
                "use the access point's alias, or a general purpose bucket",
            ));
        }
        let region = self.region();
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !region.bytes().all(fits) {
            return Err(usage(&format!("'{}' is not a region name", region.escape_debug()), "write it as eu-west-1"));
        }
        let china = if region.starts_with("cn-") { ".cn" } else { "" };
        let host = format!("s3.{region}.amazonaws.com{china}");
        let own = if is_label(bucket) { Addressing::VirtualHost } else { Addressing::Path };
        self.settle(Dialect::S3, (host, own), bucket, prefix)
    }

    fn google(&self, rest: &str) -> Result<Endpoint> {
        let (bucket, prefix) = bucket_and_prefix(rest, "gs://BUCKET/PREFIX")?;
        self.settle(Dialect::Gcs, ("storage.googleapis.com".into(), Addressing::Path), bucket, prefix)
    }

    fn azure(&self, rest: &str) -> Result<Endpoint> {
        let form = "az://ACCOUNT/CONTAINER/PREFIX";
        let (account, path) = bucket_and_prefix(rest, form)?;
        let (container, prefix) = bucket_and_prefix(path, form)?;
        self.container(account, AZURE_SUFFIXES[0], container, prefix)
    }

    /// `CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`: read through the account's blobs.
    fn data_lake(&self, rest: &str) -> Result<Endpoint> {
        let form = || usage("the URI is not abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX", FORM);
        let (place, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (container, host) = place.split_once('@').ok_or_else(form)?;
        let (account, suffix) = host.split_once(".dfs.").or_else(|| host.split_once(".blob.")).ok_or_else(form)?;
        if container.contains(':') {
            return Err(form());
        }
        let suffix = host_name(suffix)?;
        // Tokens and shared access signatures are bearer secrets: they are sent only to Microsoft's servers or the one the user set.
        if self.endpoint.is_empty() && !AZURE_SUFFIXES.contains(&suffix.as_str()) {
            return Err(usage(
                &format!("'{suffix}' is not a domain of Azure Storage"),
                "write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, or set endpoint to the server that serves it",
            ));
        }
        self.container(account, &suffix, container, prefix)
    }

    fn container(&self, account: &str, suffix: &str, container: &str, prefix: &str) -> Result<Endpoint> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !(3..=24).contains(&account.len()) || !account.bytes().all(plain) {
            return Err(usage(
                "the URI's account is not a valid storage account name",
                "write az://ACCOUNT/CONTAINER/PREFIX: an account has 3 to 24 small letters and digits",
            ));
        }
        if !is_label(container.strip_prefix('$').unwrap_or(container)) {
            return Err(usage(
                "the URI's container is not a valid container name",
                "write az://ACCOUNT/CONTAINER/PREFIX: a container has 3 to 63 small letters, digits and hyphens",
            ));
        }
        let host = format!("{account}.blob.{suffix}");
        let mut endpoint = self.settle(Dialect::Azure, (host, Addressing::Path), container, prefix)?;
        // A server of many accounts names them in the path, as Azurite does.
        if endpoint.host.split('.').next() != Some(account) {
            let gap = if endpoint.base.is_empty() { "" } else { "/" };
            endpoint.base = format!("{}{gap}{account}", endpoint.base);
        }
        Ok(endpoint)
    }

    /// On the cloud's own server, or on the one set.
    fn settle(&self, dialect: Dialect, own: (String, Addressing), bucket: &str, prefix: &str) -> Result<Endpoint> {
        refuse_length(bucket, prefix)?;
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        let ((scheme, mut host, port, base), addressing) = if self.endpoint.is_empty() {
            ((Scheme::Https, own.0, Scheme::Https.port_default(), String::new()), own.1)
        } else {
            (server(&self.endpoint)?, Addressing::Path)
        };
        let addressing =
            if dialect == Dialect::Azure { Addressing::Path } else { self.addressing.unwrap_or(addressing) };
        if addressing == Addressing::VirtualHost {
            if host.contains(':') || host.parse::<Ipv4Addr>().is_ok() || !is_label(&bucket) {
                return Err(usage(
                    "the bucket's name cannot precede the host: one of the two does not allow it",
                    "set addressing = path",
                ));
            }
            host = format!("{bucket}.{host}");
        }
        Ok(Endpoint { scheme, dialect, addressing, host, port, base, bucket, prefix })
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    /// # Errors
    /// [`Kind::Usage`] saying what to write. The text never repeats user info or a query: they may hold secrets.
    fn from_str(uri: &str) -> Result<Endpoint> {
        Cloud::default().endpoint(uri)
    }
}

/// What is read before the first slash may have been meant as a secret: it is never repeated.
fn bucket_and_prefix<'a>(rest: &'a str, form: &str) -> Result<(&'a str, &'a str)> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err(user_information());
    }
    if bucket.is_empty() || bucket.contains(['?', '#', '%', ' ']) {
        return Err(usage(
            "the URI names no bucket, or one with a character that no bucket's name has",
            &format!("write {form}"),
        ));
    }
    Ok((bucket, prefix))
}

/// Whether a bucket's name is one label of a host's name. One with a dot is not: no certificate stands for it.
fn is_label(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (3..=63).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-')
}

impl Source {
    /// The files whose paths begin with one of these: the bucket is the deepest folder that all of them are in.
    ///
    /// # Errors
    /// `Usage` when there is none.
    pub fn of_folders(mut paths: Vec<String>) -> Result<Source> {
        paths.sort_unstable();
        paths.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        let common = common_start(&paths);
        let Some((folder, _)) = common.rsplit_once('/') else {
            return Err(usage("the paths have no common folder", "write all of them as absolute paths"));
        };
        let prefixes: Vec<String> = paths.iter().map(|path| path[folder.len() + 1..].to_owned()).collect();
        Ok(Source { endpoint: folder_endpoint(folder, common_start(&prefixes)), prefixes })
    }
}

fn folder_source(all: &[Endpoint]) -> Result<Source> {
    if all.iter().any(|other| other.scheme != Scheme::File) {
        return Err(usage("the braces of the URI expand to both folders and buckets", "a data set is in one of them"));
    }
    let path = |endpoint: &Endpoint| {
        let mut path = String::new();
        endpoint.push_file_path(&mut path, &endpoint.prefix);
        path
    };
    Source::of_folders(all.iter().map(path).collect())
}

/// What follows `file://`.
fn folder_of_uri(rest: &str) -> Result<Endpoint> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(usage(
            "the URI names a file of another machine",
            "write file:///FOLDER/ with three slashes, or its path",
        ));
    }
    folder_of_path(&decoded(path, "path")?)
}

/// A path: what is before its last slash is the bucket.
fn folder_of_path(path: &str) -> Result<Endpoint> {
    if path.is_empty() {
        return Err(usage("the URI is empty", FORM));
    }
    if path.starts_with('~') {
        return Err(usage("the path begins with '~', which only shells expand", "write the absolute path"));
    }
    if !path.starts_with(['/', '.']) {
        return folder_of_path(&format!("./{path}"));
    }
    let (folder, prefix) = match path.rsplit_once('/') {
        Some((folder, prefix)) => (folder, prefix),
        None if matches!(path, "." | "..") => (path, ""),
        None => (".", path),
    };
    refuse_length(folder, prefix)?;
    Ok(folder_endpoint(folder, prefix))
}

fn folder_endpoint(folder: &str, prefix: &str) -> Endpoint {
    // Slashes in a row are one to the system: a folder is written in one way.
    let folder = folder.trim_end_matches('/');
    let bucket = if folder.is_empty() { "/" } else { folder };
    Endpoint {
        scheme: Scheme::File,
        dialect: Dialect::S3,
        addressing: Addressing::Path,
        host: String::new(),
        port: Scheme::File.port_default(),
        base: String::new(),
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    }
}

/// What all of them begin with.
fn common_start(sorted: &[String]) -> &str {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return "" };
    let same = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &first[..same]
}
