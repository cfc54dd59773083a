//! Pages of benchmark results. Each is one file that needs nothing else. Never measures, never writes files.

mod contest;
mod findings;
mod importance;
mod soak;
mod switch;

pub use findings::findings_html;
pub use importance::importance_html;
pub use soak::soak_html;
pub use switch::switch_html;
