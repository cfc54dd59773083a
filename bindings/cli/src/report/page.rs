//! Pages: a template and its data become one self-contained file.
//!
//! Owns the document around every page, the style sheet, and how templates format figures.

use fuelrail_base::ByteSize;
use minijinja::value::Serde;
use minijinja::{Environment, Value};
use serde::Serialize;

/// Renders a template that extends `page.html`. Adds the filters `seconds`, `percent`, `bytes` and `thousands` to the
/// built-in ones; all text is escaped unless it is marked `safe`.
///
/// # Panics
/// When the template is invalid: templates are constants of this program.
#[must_use]
pub fn page(template: &str, shown: impl Serialize) -> String {
    let mut pages = Environment::new();
    pages.add_filter("seconds", seconds);
    pages.add_filter("percent", percent);
    pages.add_filter("thousands", thousands);
    pages.add_filter("bytes", |bytes: u64| ByteSize(bytes).to_string());
    let rendered = pages
        .add_template("style.css", include_str!("style.css"))
        .and_then(|()| pages.add_template("page.html", include_str!("page.html")))
        .and_then(|()| pages.add_template("body.html", template))
        .and_then(|()| pages.get_template("body.html")?.render(Value::from(Serde(shown))));
    rendered.unwrap_or_else(|error| panic!("the page's template: {error:#}"))
}

/// Formats seconds in a readable unit.
#[must_use]
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s if s > 0.0 => format!("{:.0} µs", s * 1e6),
        _ => "0".to_owned(),
    }
}

/// Formats a share as a percentage, with more digits the nearer it is to 100 %.
pub(super) fn percent(share: f64) -> String {
    let share = share * 100.0;
    if share > 99.0 && share < 100.0 { format!("{share:.2} %") } else { format!("{share:.1} %") }
}

/// Formats a count with thin spaces between thousands.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join("\u{202f}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_carry_their_unit() {
        let words: Vec<_> = [800.0, 41.23, 1.5, 0.25, 0.0042, 0.000_042, 0.0].into_iter().map(seconds).collect();
        assert_eq!(words, ["800 s", "41.2 s", "1.50 s", "250 ms", "4.2 ms", "42 µs", "0"]);
        assert_eq!((percent(0.9942), percent(0.86), percent(0.0)), ("99.42 %".into(), "86.0 %".into(), "0.0 %".into()));
        assert_eq!((thousands(42), thousands(1_234_567)), ("42".into(), "1\u{202f}234\u{202f}567".into()));
    }
}
