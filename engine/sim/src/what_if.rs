//! What another node would do: which limit comes first on so many cores behind such a network card, from costs measured on
//! this one.
//!
//! Arithmetic where arithmetic answers (cores, card, memory, connections, requests), and the shipping brain and shards in
//! virtual time where it does not: whether the mesh between so many shards and the look-ahead keep such a card busy. In
//! virtual time work costs nothing, so what is missing there is what the logic itself leaves out. Never measures.

mod limits;
mod logic;
mod picture;

pub use limits::{Ceiling, Costs, Forecast, Node, Validation, forecast};
pub use logic::{LogicRun, logic_share};
pub use picture::picture;
