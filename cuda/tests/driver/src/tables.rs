//! What the state is made of: one file for each table, with what can be said of it without the rest.

pub(crate) mod event;
pub(crate) mod memory;
pub(crate) mod pinned;
pub(crate) mod stream;
pub(crate) mod transfer;
pub(crate) mod work;
