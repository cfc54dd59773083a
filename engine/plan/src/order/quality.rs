//! How well an order shuffles, in numbers.
