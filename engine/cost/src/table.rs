//! Tables of measurements: CSV with a header line. Every error names the line.

use csv::{ReaderBuilder, StringRecord, Trim};
use fuelrail_base::{Error, Kind, Result};

use crate::usage;

/// A table in memory.
#[derive(Debug)]
pub struct Table {
    header: StringRecord,
    /// Each with its line.
    rows: Vec<(usize, StringRecord)>,
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'t> {
    header: &'t StringRecord,
    line: usize,
    cells: &'t StringRecord,
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// `Usage` for a row that is not as long as the header, and for a table without rows.
    pub fn read(text: &str) -> Result<Table> {
        let text = text.trim_start_matches('\u{FEFF}');
        let mut reader = ReaderBuilder::new().trim(Trim::All).flexible(true).from_reader(text.as_bytes());
        let wrong = |error: csv::Error| {
            Error::new(Kind::Usage, error.to_string()).with_hint("give a CSV file in UTF-8 with one header line")
        };
        let header = reader.headers().map_err(wrong)?.clone();
        let mut rows = Vec::new();
        let (mut line, mut counted) = (1, 0);
        for cells in reader.records() {
            let cells = cells.map_err(wrong)?;
            // The reader's place is before the empty lines and the rest of a line end that precede the row.
            let place = cells.position().map_or(0, |position| position.byte() as usize);
            let start = text.len() - text[place..].trim_start_matches(['\r', '\n']).len();
            line += text[counted..start].matches('\n').count();
            counted = start;
            if cells.len() != header.len() {
                return usage(
                    format!("line {line}: {} cells under {} columns", cells.len(), header.len()),
                    "give every row as many cells as the header line has",
                );
            }
            rows.push((line, cells));
        }
        if rows.is_empty() {
            return usage("the table has no rows", "give a CSV file with a header line and measurements below it");
        }
        Ok(Table { header, rows })
    }

    /// Whether it has all of these columns.
    pub fn has(&self, columns: &[&str]) -> bool {
        columns.iter().all(|column| self.header.iter().any(|name| name == *column))
    }

    /// The names of the columns, for an error.
    pub fn columns(&self) -> String {
        self.header.iter().collect::<Vec<_>>().join(",")
    }

    /// The rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, cells)| Row { header: &self.header, line: *line, cells })
    }
}

impl<'t> Row<'t> {
    /// The line of the file, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The text of a cell, or nothing where the table has no such column.
    pub fn text(&self, column: &str) -> Option<&'t str> {
        let place = self.header.iter().position(|name| name == column)?;
        self.cells.get(place)
    }

    /// A number above zero.
    ///
    /// # Errors
    /// `Usage` where it is absent, no number, zero or negative; the error names the line.
    pub fn positive(&self, column: &str) -> Result<f64> {
        let text = self.text(column).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => usage(
                format!("line {}: {column} is '{text}', not a number above 0", self.line()),
                "correct the line, or leave it out",
            ),
        }
    }
}
