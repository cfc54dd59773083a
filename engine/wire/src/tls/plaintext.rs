//! Who takes the plaintext of a session.

use fuelrail_base::Result;

/// Takes the payload of a session, in order. Nothing reaches it that was not authenticated.
pub trait Plaintext {
    /// Memory where the next payload belongs, at least `bytes` long (payload, one byte more, and any padding), or `None`
    /// to be [given](Plaintext::given) it instead. The memory is written to before it is known whether the record is
    /// genuine: nothing in it counts until [`placed`](Plaintext::placed) says so, and what lies behind that is scrap.
    fn place(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// The first `bytes` bytes of the place last offered are payload.
    ///
    /// # Errors
    /// What the payload means; the session ends.
    fn placed(&mut self, bytes: usize) -> Result<()>;

    /// Payload that had no place.
    ///
    /// # Errors
    /// As for [`placed`](Plaintext::placed).
    fn given(&mut self, payload: &[u8]) -> Result<()>;
}
