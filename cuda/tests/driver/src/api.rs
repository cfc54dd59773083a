//! The entry points, by what they are about. Each is its name, its arguments and one expression; the meaning is next door.

mod device;
mod memory;
mod stream;
