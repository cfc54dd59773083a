//! What a build without TLS names as well: how long records are, who takes what they hold, and what a port that speaks TLS answers to a plain
//! request.

use fuelrail_base::Result;

/// Bytes of a record's header.
pub(super) const HEADER_BYTES: usize = 5;
/// Bytes of the tag all suites end a record with.
pub(super) const TAG_BYTES: usize = 16;
/// Most payload bytes of one record (RFC 8446, 5.1).
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 14;
/// Most bytes after the header (RFC 8446, 5.2).
pub(super) const SEALED_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 256;

/// Longest record, with its header: memory to receive into is longer than this.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + SEALED_BYTES_MAX;

/// The fewest bytes on the wire that can carry so many bytes of payload: a receive may wait for that many without
/// waiting for bytes that never arrive.
pub fn ciphertext_bytes_min(payload: usize) -> usize {
    // TLS 1.2 with ChaCha20-Poly1305 adds no more: no type after the payload (1.3), no nonce before it (AES-GCM).
    payload + payload.div_ceil(PAYLOAD_BYTES_MAX) * (HEADER_BYTES + TAG_BYTES)
}

/// Takes the payload of a session, in order. Nothing reaches it that was not authenticated.
pub trait Plaintext {
    /// Memory where the next payload belongs, at least `bytes` long (payload, one byte more, and any padding), or `None`
    /// to be [given](Plaintext::given) it instead. The memory is written to before it is known whether the record is
    /// genuine: nothing in it counts until [`placed`](Plaintext::placed) says so, and what lies after that is scrap.
    fn place(&mut self, _bytes: usize) -> Option<&mut [u8]> {
        None
    }

    /// The first `bytes` bytes of the place last offered are payload.
    ///
    /// # Errors
    /// What the payload means; the session ends.
    fn placed(&mut self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Payload that had no place.
    ///
    /// # Errors
    /// As for [`placed`](Plaintext::placed).
    fn given(&mut self, payload: &[u8]) -> Result<()>;
}

/// Whether the text of a refusal (400) says that a plain request met a port that speaks TLS: nginx, Apache and Go's
/// servers do, each in its own words.
pub fn asks_for_tls(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    ["sent to HTTPS port", "SSL-enabled server port", "to an HTTPS server"].iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_ports_that_speak_tls_are_known() {
        let nginx = "<center>The plain HTTP request was sent to HTTPS port</center>";
        let apache = "You're speaking plain HTTP to an SSL-enabled server port.";
        for text in [nginx, apache, "Client sent an HTTP request to an HTTPS server.\n"] {
            assert!(asks_for_tls(text.as_bytes()), "{text}");
        }
        assert!(!asks_for_tls(b"400 Bad Request") && !asks_for_tls(b""));
    }
}
