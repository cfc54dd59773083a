//! Stands in for `tls` in a build without it: no [`Client`] exists, so there is no [`Session`] either.

mod shared;

pub use shared::{Plaintext, RECORD_BYTES_MAX, asks_for_tls, ciphertext_bytes_min};

use fuelrail_base::Result;

/// The TLS configuration for one server: none.
#[derive(Clone, Debug)]
pub enum Client {}

impl Client {
    /// Whether the server's certificate is verified.
    pub fn verifies(&self) -> bool {
        match *self {}
    }
}

/// What a handshake ended with.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// A ticket of an earlier connection spared the certificates.
    pub resumed: bool,
}

/// The client's side of one TLS connection: none.
pub enum Session {}

#[expect(missing_docs, clippy::missing_errors_doc, reason = "the feature `tls` has what they do")]
impl Session {
    pub fn new(client: &Client) -> Result<Session> {
        match *client {}
    }

    pub fn agreed(&self) -> Option<Agreed> {
        match *self {}
    }

    pub fn has_ended(&self) -> bool {
        match *self {}
    }

    pub fn take_output(&mut self, _: &mut Vec<u8>) {
        match *self {}
    }

    pub fn seal(&mut self, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub fn feed(&mut self, _: &mut [u8], _: &mut impl Plaintext) -> Result<usize> {
        match *self {}
    }
}
