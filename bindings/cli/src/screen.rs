//! What people and programs read: text and tables on standard output, notes on standard error, JSON on either a stream or
//! in a file, and progress bars where a terminal watches.
//!
//! Owns the two streams. Never decides what is said.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Outcome, output};
use crate::whole::WholeFile;

/// Prints text that ends its own lines.
pub fn print(text: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| output(&error))
}

/// Prints one line for people on standard error. Ignores a closed standard error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "fuelrail: {text}");
}

/// Prints an error on standard error: a line with what happened, and one with what to do.
pub fn complain(error: &fuelrail::Error) {
    let _ = writeln!(io::stderr().lock(), "error: {error:?}");
}

/// Where a JSON document goes, from `--json` (standard output) or `--json FILE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JsonTo {
    /// No JSON was requested.
    Nowhere,
    /// Standard output, which then holds nothing else.
    Output,
    /// A file, beside the text for people.
    File(PathBuf),
}

impl JsonTo {
    /// From a plain switch.
    pub fn output(asked: bool) -> JsonTo {
        if asked { JsonTo::Output } else { JsonTo::Nowhere }
    }

    /// From `--json [FILE]`, which is `-` when it stands alone.
    pub fn asked(given: Option<&str>) -> JsonTo {
        match given {
            None => JsonTo::Nowhere,
            Some("-") => JsonTo::Output,
            Some(path) => JsonTo::File(path.into()),
        }
    }

    /// Shows a result: the document where it was asked for, and the text unless the document took its place.
    pub fn show(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        let json = || {
            let mut json = serde_json::to_string_pretty(document).expect("reports are plain structures");
            json.push('\n');
            json
        };
        match self {
            JsonTo::Nowhere => print(&text())?,
            JsonTo::Output => print(&json())?,
            JsonTo::File(path) => {
                WholeFile::of(path, &json())?;
                print(&text())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A table of columns, each as wide as its widest cell; columns of numbers are set right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// A table whose columns `right` are set right.
    pub fn new(right: &[usize]) -> Table {
        Table { rows: Vec::new(), right: right.to_vec() }
    }

    /// A table of what there is to say: a name and a text a line.
    pub fn facts<N: Into<String>>(facts: impl IntoIterator<Item = (N, String)>) -> Table {
        let mut table = Table::default();
        for (name, text) in facts {
            table.row([name.into(), text]);
        }
        table
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Table {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }

    /// The table as lines, two blanks between columns and none at the end of a line.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let (before, after) = if self.right.contains(&column) { (&pad[..], "") } else { ("", &pad[..]) };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Microseconds in the unit people read them in.
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// A progress bar on standard error, or nothing when no terminal watches.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar over `total` steps, or a turning wheel when the end is not known; `what` names what is counted.
    pub fn new(total: Option<u64>, what: &str) -> Bar {
        if !io::stderr().is_terminal() {
            return Bar { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let style = match total {
            Some(_) => "{bar:32} {pos}/{len} {prefix}  {msg}  {eta} left",
            None => "{spinner} {pos} {prefix}  {msg}  {elapsed}",
        };
        bar.set_style(ProgressStyle::with_template(style).expect("the template is a constant that parses"));
        bar.set_prefix(what.to_owned());
        Bar { bar }
    }

    /// Whether the bar is hidden.
    pub fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Learns the end.
    pub fn total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Moves to `done` with a word on the side. The word is only made when a terminal watches.
    pub fn at(&self, done: u64, word: impl FnOnce() -> String) {
        if !self.is_hidden() {
            self.bar.set_position(done);
            self.bar.set_message(word());
        }
    }
}

/// Tells of each of `total` things as it ends: in the bar, or with a line each where there is none.
pub fn telling<'b, T>(bar: &'b Bar, total: u64, line: impl Fn(&T) -> String + 'b) -> impl FnMut(&T) + 'b {
    let mut done = 0;
    move |one| {
        done += 1;
        if bar.is_hidden() {
            note(&format!("{} ({done} of {total})", line(one)));
        }
        bar.at(done, || line(one));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_clean() {
        let mut table = Table::new(&[1]);
        table.row(["name", "bytes", ""]).row(["é", "1 000", "x"]).row(["longer", "7"]);
        assert_eq!(table.text(), "name    bytes\né       1 000  x\nlonger      7\n");
        assert_eq!(Table::default().text(), "");
    }

    #[test]
    fn times_carry_their_unit() {
        assert_eq!(
            (micros(999), micros(1_500), micros(2_000_000)),
            ("999 µs".into(), "1.50 ms".into(), "2.00 s".into())
        );
    }
}
