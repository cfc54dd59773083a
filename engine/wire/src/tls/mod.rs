//! TLS for the client side of one connection, without sockets: bytes in, bytes and meaning out.
//!
//! rustls does what is rare and hard: handshakes, certificates, tickets, key schedules, and all of TLS 1.2. What is frequent
//! and simple is done here: once a TLS 1.3 handshake is over, [`Session`] opens records with the connection's keys itself,
//! straight from where they were received into where their payload belongs ([`Plaintext::place`]), so that decrypting is
//! the only copy. Never owns a socket or a file, never reads a clock: what time it is for certificates is the caller's to
//! say.
//!
//! A session never says goodbye: a connection given up is closed without `close_notify`. Everything we say is a request
//! that ends by its own framing, so a cut is no news to the server.

mod client;
mod failure;
mod record;
mod session;
mod shared;
#[doc(hidden)]
pub mod trial;

pub use client::{Client, Identity, Roots, Trust};
pub use failure::explain;
pub use session::{Agreed, Session};
pub use shared::{Plaintext, RECORD_BYTES_MAX, asks_for_tls, ciphertext_bytes_min};
