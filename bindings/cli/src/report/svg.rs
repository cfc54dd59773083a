//! Pieces of drawings as text: elements with escaped words, numbers without noise, scales.
//!
//! Owns nothing. Colours and fonts are the style sheet's business: elements carry classes.

use core::fmt::Write;

use crate::deli::{Row, RowName};

/// Text safe inside elements and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

/// The class that colours a row.
pub fn hue(name: RowName) -> &'static str {
    match name {
        RowName::Fuelrail => "rail",
        RowName::DeliFullFetch | RowName::Deli5050 => "deli",
        RowName::LocalDisk => "disk",
        _ => "plain",
    }
}

/// A drawing under construction.
#[derive(Debug)]
pub struct Drawing {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

impl Drawing {
    /// An empty drawing; `label` is read to those who cannot see it.
    pub fn new(width: f64, height: f64, label: &str) -> Drawing {
        Drawing { width, height, label: escape(label), body: String::new() }
    }

    /// Adds an element written out.
    pub fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// A word at a place. `class` may hold `end` or `middle` to set it right or centred.
    pub fn text(&mut self, x: f64, y: f64, class: &str, words: &str) {
        let words = escape(words);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{words}</text>"#);
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(self.body, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#);
    }

    /// A bar with rounded corners.
    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let width = width.max(1.0);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" class="{class}"/>"#
        );
    }

    /// A dot.
    pub fn dot(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" class="{class}"/>"#);
    }

    /// The element.
    pub fn finish(self) -> String {
        let Drawing { width, height, label, body } = self;
        format!("<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>")
    }
}

/// Places on a logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub struct LogScale {
    from: f64,
    to: f64,
    start: f64,
    length: f64,
}

impl LogScale {
    /// Whole powers of ten around `values`, laid from `start` over `length` (which may be negative, for upward axes).
    pub fn around(values: impl Iterator<Item = f64>, start: f64, length: f64) -> LogScale {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| *value > 0.0) {
            least = least.min(value);
            most = most.max(value);
        }
        if !least.is_finite() {
            (least, most) = (1.0, 1.0);
        }
        let (from, mut to) = (least.log10().floor(), most.log10().ceil());
        if to <= from {
            to = from + 1.0;
        }
        LogScale { from, to, start, length }
    }

    /// Where a value stands; what is below the axis stands at its start.
    pub fn at(&self, value: f64) -> f64 {
        let log = if value > 0.0 { value.log10().clamp(self.from, self.to) } else { self.from };
        self.start + (log - self.from) / (self.to - self.from) * self.length
    }

    /// The powers of ten.
    pub fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power))
    }
}

/// Seconds in the unit people read them in.
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

/// A power of ten of seconds, as an axis says it.
pub fn tick_seconds(s: f64) -> String {
    match s {
        s if s >= 0.999 => format!("{s:.0} s"),
        s if s >= 0.000_999 => format!("{:.0} ms", s * 1e3),
        _ => format!("{:.0} µs", s * 1e6),
    }
}

/// A share as a percentage, with more digits the nearer it is to the whole.
pub fn percent(share: f64) -> String {
    let share = share * 100.0;
    if share > 99.0 && share < 100.0 { format!("{share:.2} %") } else { format!("{share:.1} %") }
}

/// Where a row is in a table of rows.
pub fn find(rows: &[Row], name: RowName) -> Option<&Row> {
    rows.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_break_the_page() {
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
        let mut drawing = Drawing::new(10.0, 10.0, "\"><script>");
        drawing.text(1.0, 2.0, "x", "</svg>");
        let element = drawing.finish();
        assert!(!element.contains("<script>") && element.matches("</svg>").count() == 1, "{element}");
    }

    #[test]
    fn logarithms_span_whole_decades() {
        let scale = LogScale::around([0.5, 0.0, 80.0].into_iter(), 100.0, 300.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.1, 1.0, 10.0, 100.0]);
        assert_eq!((scale.at(0.1), scale.at(1.0), scale.at(100.0), scale.at(0.0)), (100.0, 200.0, 400.0, 100.0));
        let empty = LogScale::around(core::iter::empty(), 0.0, 10.0);
        assert!(empty.at(0.0).is_finite() && empty.at(1.0).is_finite());
    }

    #[test]
    fn times_carry_their_unit() {
        let words: Vec<_> = [800.0, 41.23, 1.5, 0.25, 0.0042, 0.000_042, 0.0].into_iter().map(seconds).collect();
        assert_eq!(words, ["800 s", "41.2 s", "1.50 s", "250 ms", "4.2 ms", "42 µs", "0"]);
        let ticks: Vec<_> = [100.0, 1.0, 0.01, 0.001, 0.000_1].into_iter().map(tick_seconds).collect();
        assert_eq!(ticks, ["100 s", "1 s", "10 ms", "1 ms", "100 µs"]);
        assert_eq!((percent(0.9942), percent(0.86), percent(0.0)), ("99.42 %".into(), "86.0 %".into(), "0.0 %".into()));
    }
}
