//! Stands in for `sign` in a build without clouds: credentials are values, and nothing signs with them.

mod credential;
mod unsigned;

pub(crate) use credential::spare;
pub use credential::{Credential, Secret};
pub use unsigned::{Payload, Realm, Scope, Unsigned, covered};

use fuelrail_base::{Error, Kind, Result, WallTime};

/// Signs nothing.
pub struct Signer;

impl Signer {
    /// As the signer of the feature `clouds`.
    pub fn new(_: Realm) -> Signer {
        Signer
    }

    /// # Errors
    /// [`Kind::Usage`], always.
    pub fn sign(
        &mut self,
        _: &Credential,
        _: (&Unsigned<'_>, Payload<'_>),
        _: WallTime,
        _: &mut String,
        _: &mut Vec<u8>,
    ) -> Result<()> {
        Err(refused())
    }

    /// # Errors
    /// [`Kind::Usage`], always.
    pub fn sign_head(&mut self, _: &Credential, _: WallTime, _: &mut Vec<u8>, _: usize) -> Result<()> {
        Err(refused())
    }
}

fn refused() -> Error {
    Error::new(Kind::Usage, "this build does not sign requests").with_hint("build it with the feature `clouds`")
}

/// Kind and hint for an error code: codes are in documents, which this build does not read.
pub fn refusal(_: u16, _: &str) -> Option<(Kind, &'static str)> {
    None
}
