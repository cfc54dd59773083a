//! Pages of benchmark results. Each is one file that needs nothing else. Never measures, never writes files.

mod contest;
mod findings;
mod soak;

pub use findings::findings_html;
pub use soak::soak_html;
