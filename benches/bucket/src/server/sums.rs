//! Length and checksums of a received body, compared with what its sender declared.

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderMap;
use md5::{Digest, Md5};

use super::refusal::Refusal;

/// Length and checksums of a body.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Summed {
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
    /// All zeros unless requested.
    pub(crate) md5: [u8; 16],
}

impl Summed {
    /// Returns the entity tag of a part, as S3 writes it.
    pub(crate) fn etag(&self) -> String {
        format!("\"{}\"", hex(&self.md5))
    }
}

/// Computes a body's sums piece by piece.
pub(super) struct Sums {
    pub(super) summed: Summed,
    md5: Option<Md5>,
    sha256: Option<digest::Context>,
}

impl Sums {
    /// MD5 and SHA-256 are the most expensive sums, so they are computed only on request.
    pub(super) fn new(with_md5: bool, with_sha256: bool) -> Sums {
        let sha256 = with_sha256.then(|| digest::Context::new(&digest::SHA256));
        Sums { summed: Summed::default(), md5: with_md5.then(Md5::new), sha256 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.summed.bytes += bytes.len() as u64;
        self.summed.crc32c = crc32c::crc32c_append(self.summed.crc32c, bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// Returns the sums, if they are those that the headers declared.
    pub(super) fn checked(mut self, headers: &HeaderMap) -> Result<Summed, Refusal> {
        if let Some(md5) = self.md5 {
            self.summed.md5 = md5.finalize().into();
        }
        let signed = headers.get("x-amz-content-sha256").filter(|value| value.len() == 64);
        if let (Some(sha256), Some(signed)) = (self.sha256, signed)
            && signed.as_bytes() != hex(sha256.finish().as_ref()).as_bytes()
        {
            let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
            return Err(Refusal::new("XAmzContentSHA256Mismatch", message));
        }
        check(headers, &self.summed)?;
        Ok(self.summed)
    }
}

/// Returns a CRC-32C as S3 writes it: four bytes, big-endian, in Base64.
pub(super) fn checksum_text(checksum: u32) -> String {
    STANDARD.encode(checksum.to_be_bytes())
}

/// Whether a request declares an MD5.
pub(super) fn promises_md5(headers: &HeaderMap) -> bool {
    headers.contains_key("content-md5") || google(headers).any(|(name, _)| name == "md5")
}

/// Rejects a body that differs from what its headers declare.
fn check(headers: &HeaderMap, summed: &Summed) -> Result<(), Refusal> {
    let (crc32c, md5) = (checksum_text(summed.crc32c), STANDARD.encode(summed.md5));
    let amazon = headers.get_all("x-amz-checksum-crc32c").iter().map(|value| (value.as_bytes(), &crc32c));
    let mail = headers.get_all("content-md5").iter().map(|value| (value.as_bytes(), &md5));
    let google = google(headers).filter_map(|(name, value)| match name {
        "crc32c" => Some((value.as_bytes(), &crc32c)),
        "md5" => Some((value.as_bytes(), &md5)),
        _ => None,
    });
    if amazon.chain(mail).chain(google).any(|(promised, is)| promised != is.as_bytes()) {
        return Err(Refusal::new("BadDigest", "The checksum you specified did not match what we received."));
    }
    Ok(())
}

/// Returns the hashes in `x-goog-hash`: `crc32c=…, md5=…`.
fn google(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|pair| pair.trim().split_once('='))
}

/// Returns the entity tag and checksum of a multipart object, as S3 computes them: sums of the parts' sums, and the number of parts.
pub(super) fn of_parts<'a>(parts: impl Iterator<Item = &'a Summed>) -> (String, String) {
    let (mut md5, mut crc32c, mut count) = (Md5::new(), 0, 0);
    for part in parts {
        md5.update(part.md5);
        crc32c = crc32c::crc32c_append(crc32c, &part.crc32c.to_be_bytes());
        count += 1;
    }
    (format!("\"{}-{count}\"", hex(&md5.finalize())), format!("{}-{count}", checksum_text(crc32c)))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
