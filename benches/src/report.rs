//! Any result as a page: its facts, its lists as tables, every column of repeated measurements as a chart.
//!
//! Owns how a document's structure becomes sections. A list whose entries hold measurements in lists of their own (contests)
//! becomes a section an entry; any other list of objects becomes a table.

use std::collections::BTreeSet;

use fuelrail::{Error, Kind, Result};
use fuelrail_cli::report::chart::{Axis, Bar, Curve, Hue, bars, curves, file};
use fuelrail_cli::report::{page, seconds};
use serde::Serialize;
use serde_json::Value;

/// From so many entries on, numbers that go with a time are drawn over it.
const MOMENTS_MIN: usize = 10;
/// Fields that name an entry, where it has one of them.
const NAMES: [&str; 3] = ["name", "run", "bar.metric"];
const PLAIN: Axis = Axis { log: false, tick: number };

#[derive(Serialize, Default)]
struct Section {
    title: String,
    facts: Vec<(String, String)>,
    charts: Vec<(String, String)>,
    tables: Vec<Table>,
}

#[derive(Serialize)]
struct Table {
    title: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

pub fn results_html(results: &[(String, Value)]) -> Result<String> {
    let (mut sections, mut holds) = (Vec::new(), Vec::new());
    for (name, result) in results {
        let document = result.as_array().is_some_and(|runs| runs.iter().all(Value::is_object) && !runs.is_empty());
        if !document && result["schema"].as_u64().is_none() {
            let error = Error::new(Kind::Usage, format!("{name}: not a result file"));
            return Err(error.with_hint("give JSON results of the benchmarks"));
        }
        section(name, result, &mut sections);
        judged(result, &mut holds);
    }
    let holding = holds.iter().filter(|holds| **holds).count();
    let shown = serde_json::json!({ "sections": sections, "holding": holding, "judged": holds.len() });
    Ok(page(include_str!("report.html"), shown))
}

/// One column of a list of a result, by its path with dots (entries of lists on the way by their names), as a picture: a bar an entry, on a
/// logarithmic axis where the values span more than a factor of a hundred.
///
/// # Errors
/// `Usage` when the result has no such column of numbers.
pub fn column_svg(result: &Value, column: &str) -> Result<String> {
    let (mut at, mut field) = (result, column);
    while let Some((head, rest)) = field.split_once('.') {
        let named = |entry: &&Value| entry["name"] == head || entry["set"]["name"] == head;
        let Some(inside) = at.get(head).or_else(|| at.as_array()?.iter().find(named)) else { break };
        (at, field) = (inside, rest);
    }
    let entries = at.as_array().map(Vec::as_slice).unwrap_or_default();
    let in_unit = if field.ends_with("_s") { seconds } else { number };
    let place = format!("/{}", field.replace('.', "/"));
    let bar = |entry: &Value| {
        let (name, value) = (entry["name"].as_str()?, entry.pointer(&place)?.as_f64()?);
        Some(Bar { name: name.to_owned(), text: in_unit(value), value, marks: Vec::new(), hue: hue(name) })
    };
    let rows: Vec<Bar> = entries.iter().filter_map(bar).collect();
    if rows.is_empty() {
        let error = Error::new(Kind::Usage, format!("the result has no column '{column}'"));
        return Err(error.with_hint("name a list and a number of its entries, as rows.data_wait_s"));
    }
    let (least, most) = rows.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), row| (a.min(row.value), b.max(row.value)));
    Ok(file(&bars(&rows, Axis { log: least > 0.0 && most > least * 100.0, tick: in_unit })))
}

fn hue(name: &str) -> Hue {
    match name {
        name if name.starts_with("fuelrail") => Hue::Rail,
        name if name.starts_with("floor") || name == "local_disk" => Hue::Disk,
        _ => Hue::Deli,
    }
}

/// Every `holds` of a document: a bar or a criterion that was not judged does not hold.
fn judged(value: &Value, found: &mut Vec<bool>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("holds").map(|holds| holds == &Value::Bool(true)));
            fields.values().for_each(|value| judged(value, found));
        }
        Value::Array(entries) => entries.iter().for_each(|entry| judged(entry, found)),
        _ => {}
    }
}

fn section(title: &str, value: &Value, sections: &mut Vec<Section>) {
    let at = sections.len();
    sections.push(Section { title: title.to_owned(), ..Section::default() });
    let mut lists = Vec::new();
    let mut cells = Vec::new();
    flatten("", value, &mut cells, &mut lists);
    sections[at].facts = cells.into_iter().map(|(name, value)| (name, text(value))).collect();
    for (name, entries) in lists {
        if entries.iter().any(holds_measured_lists) {
            for entry in entries {
                let own = ["/name", "/set/name", "/run"].iter().find_map(|path| entry.pointer(path)?.as_str());
                section(&format!("{title}: {name} {}", own.unwrap_or_default()), entry, sections);
            }
        } else {
            list(&name, entries, &mut sections[at]);
        }
    }
}

/// Whether an entry holds a list whose entries hold measurements.
fn holds_measured_lists(entry: &Value) -> bool {
    let (mut cells, mut lists) = (Vec::new(), Vec::new());
    flatten("", entry, &mut cells, &mut lists);
    lists.iter().any(|(_, entries)| entries.iter().any(|entry| !columns(entry).is_empty()))
}

fn columns(entry: &Value) -> Vec<String> {
    let mut cells = Vec::new();
    flatten("", entry, &mut cells, &mut Vec::new());
    cells.into_iter().filter(|(_, value)| spread(value).is_some()).map(|(name, _)| name).collect()
}

/// The single values of a document by their paths, and its lists of objects by theirs.
fn flatten<'a>(
    path: &str,
    value: &'a Value,
    cells: &mut Vec<(String, &'a Value)>,
    lists: &mut Vec<(String, &'a [Value])>,
) {
    match value {
        Value::Object(fields) if spread(value).is_none() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, cells, lists);
            }
        }
        Value::Array(entries) if entries.iter().any(|entry| entry.is_object() || entry.is_array()) => {
            lists.push((path.to_owned(), entries));
        }
        Value::Null => {}
        _ => cells.push((path.to_owned(), value)),
    }
}

/// Median, least and most of what was measured again and again.
fn spread(value: &Value) -> Option<[f64; 3]> {
    let field = |name: &str| value.get(name)?.as_f64();
    Some([field("median").or_else(|| field("mean"))?, field("min")?, field("max")?])
}

fn list(title: &str, entries: &[Value], section: &mut Section) {
    let points: Option<Vec<(f64, f64)>> = entries.iter().map(pair).collect();
    if let Some(points) = points {
        return section.charts.push((title.to_owned(), percentiles(points)));
    }
    let mut rows = Vec::new();
    for entry in entries {
        let (mut cells, mut lists) = (Vec::new(), Vec::new());
        flatten("", entry, &mut cells, &mut lists);
        for (name, entries) in lists {
            if entries.iter().all(|entry| pair(entry).is_some()) {
                let row = cells.first().map_or_else(String::new, |(_, value)| text(value));
                list(&format!("{row} {name}"), entries, section);
            }
        }
        rows.push(cells);
    }
    let mut heads: Vec<String> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !heads.contains(name) {
            heads.push(name.clone());
        }
    }
    // The sort is stable: the other columns stay in their order.
    heads.sort_by_key(|head| !NAMES.contains(&head.as_str()) && head != "at_s");
    let cell = |row: &[(String, &Value)], head: &String| {
        row.iter().find(|(name, _)| name == head).map_or_else(|| "–".to_owned(), |(_, value)| text(value))
    };
    if heads.first().is_some_and(|head| head == "at_s") && rows.len() >= MOMENTS_MIN {
        return over_time(&heads, &rows, section);
    }
    let measured: BTreeSet<String> = entries.iter().flat_map(columns).collect();
    section.charts.extend(measured.iter().map(|head| (format!("{title}: {head}"), chart(head, &rows))));
    let rows = rows.iter().map(|row| heads.iter().map(|head| cell(row, head)).collect()).collect();
    section.tables.push(Table { title: title.to_owned(), heads, rows });
}

/// A bar for every row that has the measurement, from nothing to its median, with marks at the least and the most.
fn chart(head: &str, rows: &[Vec<(String, &Value)>]) -> String {
    let bar = |row: &Vec<(String, &Value)>| {
        let value = row.iter().find(|(name, _)| name == head)?.1;
        let [median, min, max] = spread(value)?;
        let name = row.iter().find(|(name, _)| NAMES.contains(&name.as_str()));
        let name = text(name.or_else(|| row.iter().find(|(_, value)| value.is_string())).or_else(|| row.first())?.1);
        let hue = hue(&name);
        Some(Bar { name, text: text(value), value: median, marks: vec![min, max], hue })
    };
    bars(&rows.iter().filter_map(bar).collect::<Vec<_>>(), PLAIN)
}

fn over_time(heads: &[String], rows: &[Vec<(String, &Value)>], section: &mut Section) {
    let of = |row: &[(String, &Value)], head: &str| row.iter().find(|(name, _)| name == head)?.1.as_f64();
    for head in &heads[1..] {
        let points: Vec<(f64, f64)> = rows.iter().filter_map(|row| Some((of(row, "at_s")?, of(row, head)?))).collect();
        if points.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let curve = Curve { points, hue: Hue::Rail };
            section.charts.push((format!("{head} over time, s"), curves(&[curve], PLAIN, PLAIN)));
        }
    }
}

fn pair(entry: &Value) -> Option<(f64, f64)> {
    match entry.as_array()?.as_slice() {
        [x, y] => Some((x.as_f64()?, y.as_f64()?)),
        _ => None,
    }
}

/// A value over its quantile, both logarithmic: every tenth of what is left is as wide as the one before.
fn percentiles(mut points: Vec<(f64, f64)>) -> String {
    points.retain(|(quantile, _)| *quantile < 1.0);
    points.iter_mut().for_each(|(quantile, _)| *quantile = 1.0 / (1.0 - *quantile));
    let quantile = Axis { log: true, tick: |left| format!("{} %", number(100.0 - 100.0 / left)) };
    curves(&[Curve { points, hue: Hue::Rail }], quantile, Axis { log: true, tick: number })
}

fn text(value: &Value) -> String {
    if let Some([median, min, max]) = spread(value) {
        return format!("{} ({}–{})", number(median), number(min), number(max));
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Number(value) if value.is_f64() => number(value.as_f64().unwrap_or_default()),
        Value::Array(entries) => entries.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Bool(true) => "✓".to_owned(),
        Value::Bool(false) => "✗".to_owned(),
        other => other.to_string(),
    }
}

/// Three digits after the point, four for what is below one, none for what is large; no needless zeros.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1e3 => 0,
        size if size >= 1.0 => 3,
        size if size >= 1e-3 => 4,
        _ => 7,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_a_table_and_a_chart_a_column() {
        let measured = |median| serde_json::json!({ "median": median, "min": 1, "max": 4, "count": 3 });
        let rows = [("plain", 2.0), ("hedged", 1.5)].map(
            |(run, wait)| serde_json::json!({ "run": run, "wait_ms": measured(wait), "epoch_s": measured(wait * 2.0) }),
        );
        let result = serde_json::json!({ "schema": 1, "question": "scenario", "name": "tail", "rows": rows });
        let page = results_html(&[("tail.json".to_owned(), result)]).unwrap();
        assert_eq!((page.matches("<svg ").count(), page.matches("<table>").count()), (2, 1));
        assert!(page.contains("hedged") && page.contains("1.5 (1–4)") && page.contains("epoch_s"), "{page}");
        assert_eq!(results_html(&[("x".to_owned(), Value::Null)]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn pictures_are_those_of_their_results() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = "contests.mid.contestants.warm.cpu_s_per_gb.median";
        for (result, column, picture) in [
            ("2026-11-epyc-2-cores/demo.json", "rows.data_wait_s", "data-wait.svg"),
            ("2026-11-xeon-2-cores/line-mid-python-quarter.json", python, "python-cpu.svg"),
        ] {
            let text = std::fs::read(root.join("results").join(result)).unwrap();
            let drawn = column_svg(&serde_json::from_slice(&text).unwrap(), column).unwrap();
            let picture = root.join("../engine/docs").join(picture);
            if std::env::var_os("FUELRAIL_BLESS").is_some() {
                std::fs::write(&picture, &drawn).unwrap();
            }
            let kept = std::fs::read_to_string(&picture).unwrap_or_default();
            assert!(
                drawn == kept,
                "draw it anew: cargo x bench report {result} --chart {column} -o {}",
                picture.display()
            );
        }
        let error = column_svg(&serde_json::json!({ "rows": [{ "name": "a", "b": 1 }] }), "rows.nothing").unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
    }

    #[test]
    fn every_committed_result_becomes_a_page() {
        let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let folders = std::fs::read_dir(results).unwrap().map(|entry| entry.unwrap().path());
        let mut count = 0;
        for path in folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
            let path = path.unwrap().path();
            let value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let page = results_html(&[(path.display().to_string(), value)]).unwrap();
            let drawn = page.contains("<table>") || page.contains("<svg ");
            assert!(drawn && !page.contains("NaN"), "{}", path.display());
            count += 1;
        }
        assert!(count > 30, "{count} results");
    }
}
