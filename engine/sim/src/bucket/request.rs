//! Requests as the bucket hears them: strict, because the client is what is being tested.

use crate::dataset::{AUTHORITY, DataSet, PATH};
use fuelrail_base::SampleId;
use percent_encoding::percent_decode_str;

/// A GET of an object or of a part of it.
pub(super) struct Get {
    pub sample: SampleId,
    /// First and last byte, both inclusive and inside the object.
    pub range: Option<(u64, u64)>,
    /// The object's checksum is requested.
    pub checksum: bool,
}

/// Length of the first complete head in `inbox`.
pub(super) fn head_len(inbox: &[u8]) -> Option<usize> {
    inbox.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Takes a head apart, or says what is wrong with it.
pub(super) fn parse(head: &[u8], objects: &DataSet) -> Result<Get, String> {
    let text = core::str::from_utf8(head).map_err(|_| "not ASCII".to_string())?;
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let path = lines
        .next()
        .and_then(|line| line.strip_prefix("GET "))
        .and_then(|line| line.strip_suffix(" HTTP/1.1"))
        .ok_or("not a GET of HTTP/1.1")?;
    let key = path.strip_prefix(PATH).ok_or_else(|| format!("'{path}' is not in the bucket"))?;
    let key = percent_decode_str(key).decode_utf8().map_err(|_| format!("'{key}' is badly escaped"))?;
    let sample = objects.sample(&key).ok_or_else(|| format!("no object is named '{key}'"))?;
    let (mut host, mut range, mut checksum) = (None, None, false);
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("'{line}' is no header line"))?;
        match name.to_ascii_lowercase().as_str() {
            "host" => host = Some(value),
            "range" => range = Some(span(value).ok_or_else(|| format!("'{value}' is no range"))?),
            "x-amz-checksum-mode" => checksum = value == "ENABLED",
            "accept-encoding" if value != "identity" => return Err(format!("'{value}' would move offsets")),
            _ => {}
        }
    }
    if host != Some(AUTHORITY) {
        return Err(format!("the Host line is {host:?}"));
    }
    let len = objects.bytes(sample).len() as u64;
    match range {
        _ if len == 0 => Err("an empty object needs no request".into()),
        Some((first, last)) if first > last || last >= len => Err(format!("{first}-{last} of {len} bytes")),
        _ => Ok(Get { sample, range, checksum }),
    }
}

fn span(value: &str) -> Option<(u64, u64)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::URI;

    #[test]
    fn understands_what_the_engine_writes_and_refuses_the_rest() {
        let set = DataSet::new(1, &[5, 5, 5, 9, 0]);
        let endpoint: fuelrail_wire::Endpoint = URI.parse().unwrap();
        let mut text = Vec::new();
        let path = endpoint.object_path(set.key(SampleId(3)));
        fuelrail_wire::write_get(&mut text, &endpoint.authority(), &path, Some((2, 8)), None).unwrap();
        assert_eq!(head_len(&text), Some(text.len()));
        assert_eq!(head_len(&text[..text.len() - 1]), None);
        let get = parse(&text, &set).unwrap();
        assert_eq!((get.sample, get.range, get.checksum), (SampleId(3), Some((2, 8)), false));
        for (from, to) in [("GET", "PUT"), ("2-8", "2-9"), ("2-8", "8-2"), (":9000", ""), ("set", "sat")] {
            let wrong = String::from_utf8(text.clone()).unwrap().replacen(from, to, 1);
            assert!(parse(wrong.as_bytes(), &set).is_err(), "{wrong}");
        }
    }
}
