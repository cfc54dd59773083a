//! The hashes among the checksums: SHA through aws-lc-rs, and MD5.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use md5::{Digest as _, Md5};

/// A hash of what has come so far.
#[derive(Clone)]
pub(super) enum Hash {
    Sha(Context),
    Md5(Md5),
}

impl Hash {
    pub(super) fn sha256() -> Hash {
        Hash::Sha(Context::new(&SHA256))
    }

    pub(super) fn sha1() -> Hash {
        Hash::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY))
    }

    pub(super) fn md5() -> Hash {
        Hash::Md5(Md5::new())
    }

    pub(super) fn update(&mut self, piece: &[u8]) {
        match self {
            Hash::Sha(hash) => hash.update(piece),
            Hash::Md5(md5) => md5.update(piece),
        }
    }

    pub(super) fn is(&self, promised: &[u8]) -> bool {
        match self {
            Hash::Sha(hash) => hash.clone().finish().as_ref() == promised,
            Hash::Md5(md5) => md5.clone().finalize().as_slice() == promised,
        }
    }
}
