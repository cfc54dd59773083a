//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read files and run tar; the crate never does"
)]

mod fuzz_corpus;
mod gnu_tar;
mod golden;
