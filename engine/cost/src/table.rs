//! Tables of measurements: CSV with a header line. Every error names the line.

use csv::{ReaderBuilder, StringRecord, Trim};
use fuelrail_base::{Error, Kind, Result};

use crate::usage;

/// A table in memory.
#[derive(Debug)]
pub struct Table {
    header: StringRecord,
    rows: Vec<StringRecord>,
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'t> {
    header: &'t StringRecord,
    cells: &'t StringRecord,
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// `Usage` for a row that is not as long as the header, and for a table without rows.
    pub fn read(text: &str) -> Result<Table> {
        let mut reader =
            ReaderBuilder::new().trim(Trim::All).from_reader(text.trim_start_matches('\u{FEFF}').as_bytes());
        let wrong = |error: csv::Error| {
            Error::new(Kind::Usage, error.to_string())
                .with_hint("give a CSV file with one header line and equally long rows")
        };
        let header = reader.headers().map_err(wrong)?.clone();
        let rows = reader.records().collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        if rows.is_empty() {
            return usage("the table has no rows", "give a CSV file with a header line and measurements below it");
        }
        Ok(Table { header, rows })
    }

    /// Whether it has all of these columns.
    #[must_use]
    pub fn has(&self, columns: &[&str]) -> bool {
        columns.iter().all(|column| self.header.iter().any(|name| name == *column))
    }

    /// The names of the columns, for an error.
    #[must_use]
    pub fn columns(&self) -> String {
        self.header.iter().collect::<Vec<_>>().join(",")
    }

    /// The rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { header: &self.header, cells })
    }
}

impl<'t> Row<'t> {
    /// The line of the file, from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.cells.position().map_or(0, csv::Position::line)
    }

    /// The text of a cell, or nothing where the table has no such column.
    #[must_use]
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
