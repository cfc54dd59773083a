//! What signatures are made for.

/// What a signature is good for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// `eu-central-1`; what servers of one's own are set to is mostly `us-east-1`, and Google takes `auto`.
    pub region: String,
    /// `s3`, `sts`.
    pub service: &'static str,
}

/// What the signature says of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Nothing: TLS and checksums guard it. Costs no pass over the bytes.
    Unsigned,
    /// Its SHA-256, in hexadecimal.
    Sha256(&'a str),
}

/// What signatures are made for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Realm {
    /// Region and service, where those are signed.
    pub scope: Scope,
    /// The requester pays (S3's `x-amz-request-payer`).
    pub requester_pays: bool,
}
