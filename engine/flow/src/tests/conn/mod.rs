//! The connection under any responses, chopped in any way, against a plain parse of the same bytes.

mod cases;
mod plain;
mod properties;
mod rig;
