//! One suite for every back-end of [`Ring`](crate::Ring).
