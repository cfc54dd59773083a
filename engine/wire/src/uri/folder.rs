//! Folders of this machine in a bucket's place: what is before the last slash of a path is the bucket.

use super::parse::{FORM, refuse_length};
use super::{Addressing, Dialect, Endpoint, Scheme, usage};
use fuelrail_base::Result;

/// What is behind `file://`.
pub(super) fn of_uri(rest: &str) -> Result<Endpoint> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(usage(
            "the URI names a file of another machine",
            "write file:///FOLDER/ with three slashes, or its path",
        ));
    }
    of_path(path)
}

/// A path that begins with a slash or a dot.
pub(super) fn of_path(path: &str) -> Result<Endpoint> {
    if path.starts_with('~') {
        return Err(usage("the path begins with '~', which shells write out", "write the path from the root"));
    }
    if !path.starts_with(['/', '.']) {
        return Err(usage("the URI has no scheme", FORM));
    }
    let (folder, prefix) = match path.rsplit_once('/') {
        Some((folder, prefix)) => (folder, prefix),
        None if matches!(path, "." | "..") => (path, ""),
        None => (".", path),
    };
    refuse_length(folder, prefix)?;
    Ok(endpoint(folder, prefix))
}

fn endpoint(folder: &str, prefix: &str) -> Endpoint {
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

/// The deepest folder that all paths are in, with what they have in common behind it as its prefix, and what each is within it.
pub(super) fn gathered(mut paths: Vec<String>) -> Result<(Endpoint, Vec<String>)> {
    paths.sort_unstable();
    paths.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
    let common = common_start(&paths);
    let Some((folder, _)) = common.rsplit_once('/') else {
        return Err(usage("the paths have no folder in common", "write all of them from the root"));
    };
    let prefixes: Vec<String> = paths.iter().map(|path| path[folder.len() + 1..].to_owned()).collect();
    Ok((endpoint(folder, common_start(&prefixes)), prefixes))
}

/// What all of them begin with.
pub(super) fn common_start(sorted: &[String]) -> &str {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return "" };
    let same = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &first[..same]
}
