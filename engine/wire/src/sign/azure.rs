//! Azure's Blob service: shared keys, shared access signatures and tokens.
//!
//! Spoken to in one version of its interface, which every request names.

use super::aws::LastKey;
use super::credential::Secret;
use super::unsigned::{Lines, Parameters, Unsigned, insert_line, push_value};
use crate::{base64, date};
use aws_lc_rs::hmac;
use fuelrail_base::{Result, WallTime};
use percent_encoding::percent_decode_str;

/// The version of the interface.
const VERSION: &[u8] = b"2021-12-02";

/// The account's key, and scratch memory.
#[derive(Default)]
pub(super) struct AzureSigner {
    key: LastKey,
    dated: Vec<u8>,
    to_sign: Vec<u8>,
}

impl AzureSigner {
    /// Appends the lines that every request has, and that a token goes with.
    pub(super) fn date(at: WallTime, lines: &mut Vec<u8>) {
        lines.extend_from_slice(b"x-ms-date: ");
        date::push_http(lines, at);
        lines.extend_from_slice(b"\r\nx-ms-version: ");
        lines.extend_from_slice(VERSION);
        lines.extend_from_slice(b"\r\n");
    }

    /// Appends the lines that make `request` one signed with the account's key ("Authorize with Shared Key").
    pub(super) fn sign(
        &mut self,
        (account, key): (&str, &Secret),
        request: &Unsigned<'_>,
        at: WallTime,
        lines: &mut Vec<u8>,
    ) -> Result<()> {
        AzureSigner::date(at, lines);
        self.name_what_is_signed(account, request, at)?;
        let made = || {
            let bytes = zeroize::Zeroizing::new(base64::decode(key.expose().as_bytes()).unwrap_or_default());
            hmac::Key::new(hmac::HMAC_SHA256, &bytes)
        };
        let signature = hmac::sign(self.key.get(key, [0; 8], made), &self.to_sign);
        for piece in [b"Authorization: SharedKey ", account.as_bytes(), b":"] {
            lines.extend_from_slice(piece);
        }
        base64::push(lines, signature.as_ref());
        lines.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn name_what_is_signed(&mut self, account: &str, request: &Unsigned<'_>, at: WallTime) -> Result<()> {
        let AzureSigner { dated, to_sign: out, .. } = self;
        dated.clear();
        date::push_http(dated, at);
        out.clear();
        out.extend_from_slice(request.method.as_bytes());
        out.push(b'\n');
        for name in STANDARD {
            let value = request.headers.iter().find(|(known, _)| *known == name).map_or(&b""[..], |(_, value)| value);
            // An empty body has no length in a signature.
            if !(name == "content-length" && value == b"0") {
                push_value(out, value);
            }
            out.push(b'\n');
        }
        let mut own = Lines::new();
        insert_line(&mut own, "x-ms-date", dated)?;
        insert_line(&mut own, "x-ms-version", VERSION)?;
        for (name, value) in request.headers.iter().filter(|(name, _)| name.starts_with("x-ms-")) {
            insert_line(&mut own, name, value)?;
        }
        for (name, value) in &own {
            out.extend_from_slice(name.as_bytes());
            out.push(b':');
            push_value(out, value);
            out.push(b'\n');
        }
        out.push(b'/');
        out.extend_from_slice(account.as_bytes());
        out.extend_from_slice(request.parts().0.as_bytes());
        let mut parameters = Parameters::new();
        request.parameters(&mut parameters)?;
        push_parameters(out, &parameters);
        Ok(())
    }
}

/// The headers whose values are signed by their place, between method and the service's own.
const STANDARD: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// A line for each name, decoded. Our own names are in lower case.
fn push_parameters(out: &mut Vec<u8>, parameters: &Parameters<'_>) {
    for (n, (name, value)) in parameters.iter().enumerate() {
        if n > 0 && parameters[n - 1].0 == *name {
            out.push(b',');
        } else {
            out.push(b'\n');
            out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
            out.push(b':');
        }
        out.extend(percent_decode_str(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Unsigned<'_>, account: &str) -> String {
        let mut signer = AzureSigner::default();
        // Fri, 26 Jun 2015 23:39:12 GMT
        signer.name_what_is_signed(account, request, WallTime(1_435_361_952)).unwrap();
        String::from_utf8(signer.to_sign).unwrap()
    }

    /// The example of "Authorize with Shared Key", in the version spoken here.
    #[test]
    fn the_example_of_the_reference() {
        let request = Unsigned {
            method: "GET",
            host: "myaccount.blob.core.windows.net",
            path_and_query: "/mycontainer?restype=container&comp=metadata&timeout=20",
            headers: &[("content-length", b"0")],
        };
        assert_eq!(
            text(&request, "myaccount"),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2021-12-02\n\
             /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
        );
    }

    #[test]
    fn headers_stand_in_their_places_and_values_are_decoded() {
        let request = Unsigned {
            method: "PUT",
            host: "127.0.0.1:10000",
            path_and_query: "/devstoreaccount1/c/a%20b?prefix=x%2Fy&comp=list",
            headers: &[
                ("content-length", b"11"),
                ("if-match", b"\"0x8D\""),
                ("range", b"bytes=0-9"),
                ("x-ms-blob-type", b" BlockBlob"),
            ],
        };
        assert_eq!(
            text(&request, "devstoreaccount1"),
            "PUT\n\n\n11\n\n\n\n\n\"0x8D\"\n\n\nbytes=0-9\nx-ms-blob-type:BlockBlob\n\
             x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2021-12-02\n\
             /devstoreaccount1/devstoreaccount1/c/a%20b\ncomp:list\nprefix:x/y"
        );
    }

    /// The key is the well-known one of the vendor's emulator; the signature was computed with Python's `hmac`.
    #[test]
    fn the_signature_is_that_of_another_implementation() {
        let key =
            Secret::new("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==");
        let request = Unsigned { method: "GET", host: "h", path_and_query: "/devstoreaccount1/c/k", headers: &[] };
        let mut lines = Vec::new();
        let mut signer = AzureSigner::default();
        for _ in 0..2 {
            lines.clear();
            signer.sign(("devstoreaccount1", &key), &request, WallTime(1_435_361_952), &mut lines).unwrap();
        }
        assert_eq!(
            String::from_utf8(lines).unwrap(),
            "x-ms-date: Fri, 26 Jun 2015 23:39:12 GMT\r\nx-ms-version: 2021-12-02\r\n\
             Authorization: SharedKey devstoreaccount1:tU9usxrLrnXAgmglAmZocvpFbSSug8qUlacwHrtXNm8=\r\n"
        );
    }
}
