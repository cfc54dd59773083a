//! Figures in tables are those of the results they name, to the last digit shown, and the page says at which commit they were measured.
//!
//! A table of figures follows a comment that names, for every number of a row after the first cell, its path in the result:
//! `<!-- figures FILE rows/$1/epoch_s rows/$1/epoch_s:rows/bucket/epoch_s -->`. A step into a list names an entry, by its `name`, `run` or
//! `step`; `-` stands for a space or a comma in what it names; `a:b` is a quotient; an object is the sum of its numbers. `$1`, `$2` … are the
//! words after `#` of the row's own link to a result, or `$1` is its first cell. FILE holds for the paths after it; without one, the row's
//! link. A number before ` %` is compared with a hundred times the value.
//!
//! The age: results are rarely as new as the code, so the section that shows one names the commit it was measured at, always.

use super::workspace::Workspace;
use serde_json::Value;

const PAGES: [&str; 2] = ["README.md", "benches/RESULTS.md"];

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let mut problems = Vec::new();
    for page in PAGES {
        let text = workspace.files.get(page).map(String::as_str).unwrap_or_default();
        for section in text.split("\n#") {
            let mut checked = Vec::new();
            for (paths, table) in section.split("<!-- figures ").skip(1).filter_map(|rest| rest.split_once("-->")) {
                let paths: Vec<&str> = paths.split_whitespace().collect();
                let table = table.trim_start().lines().take_while(|line| line.starts_with('|'));
                checked.extend(table.skip(2).map(|row| (row, paths.clone())));
            }
            let named = section.lines().filter(|line| line.starts_with('|') && line.contains(".json"));
            let unchecked = named.filter(|line| checked.iter().all(|(row, _)| row != line));
            problems.extend(unchecked.map(|row| format!("{page}: no comment says where the figures come from: {row}")));
            for (row, paths) in checked {
                problems.extend(compare(workspace, page, section, row, &paths).unwrap_or_else(|why| vec![why]));
            }
        }
    }
    problems
}

/// What is wrong with a row.
fn compare(w: &Workspace, page: &str, section: &str, row: &str, paths: &[&str]) -> Result<Vec<String>, String> {
    let wrong = |why: String| format!("{page}: {why}: {row}");
    let (first, rest) = row.trim_start_matches('|').split_once('|').ok_or_else(|| wrong("one cell".to_owned()))?;
    let link = first.split("](").nth(1).and_then(|link| link.split(')').next()).unwrap_or_default();
    let (own, words) = link.split_once('#').unwrap_or((link, first.trim_matches([' ', '*', '`'])));
    let keys: Vec<&str> = words.split(',').collect();
    let (mut file, mut shown, mut problems) = (own, numbers(rest).into_iter(), Vec::new());
    for path in paths {
        if path.ends_with(".json") {
            file = path;
            continue;
        }
        let place = page.rsplit_once('/').map_or_else(|| file.to_owned(), |(folder, _)| format!("{folder}/{file}"));
        let text = w.files.get(&place).ok_or_else(|| wrong(format!("there is no {place}")))?;
        let result: Value = serde_json::from_str(text).map_err(|e| wrong(format!("{place}: {e}")))?;
        let commit = [&result["machine"]["git_commit"], &result["pack"]["commit"]].into_iter().find_map(Value::as_str);
        let commit = commit.unwrap_or("commit");
        if !section.contains(&commit[..commit.len().min(7)]) {
            problems.push(wrong(format!("{place} was measured at {commit}, and the section does not name it")));
        }
        let path = keys.iter().zip(1..).fold((*path).to_owned(), |path, (key, n)| path.replace(&format!("${n}"), key));
        let value = quotient(&result, &path).ok_or_else(|| wrong(format!("{place} has no number at {path}")))?;
        let (number, is_share) = shown.next().ok_or_else(|| wrong(format!("no number for {path}")))?;
        let digits = number.split_once('.').map_or(0, |(_, digits)| digits.len());
        let real = format!("{:.digits$}", if is_share { value * 100.0 } else { value });
        if real != number {
            problems.push(wrong(format!("{number} is {real} at {path} of {place}")));
        }
    }
    problems.extend(shown.map(|(number, _)| wrong(format!("no path for {number}"))));
    Ok(problems)
}

/// The numbers of a text, and whether each is a percentage. Thin spaces between thousands are dropped.
fn numbers(text: &str) -> Vec<(String, bool)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let number = &rest[at..];
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '\u{202f}').unwrap_or(number.len());
        rest = &number[end..];
        found.push((number[..end].replace('\u{202f}', ""), rest.starts_with(" %")));
    }
    found
}

fn quotient(result: &Value, path: &str) -> Option<f64> {
    match path.split_once(':') {
        Some((of, by)) => Some(quotient(result, of)? / by.parse().ok().or_else(|| quotient(result, by))?),
        None => sum(path.split('/').try_fold(result, |value, step| match value {
            Value::Array(entries) => entries.iter().find(|entry| {
                let deep = [&entry["set"]["name"], &entry["bar"]["metric"]];
                let mut names = ["name", "run", "step"].iter().map(|key| &entry[*key]).chain(deep);
                names.any(|name| name.as_str().is_some_and(|name| is_called(name, step)))
            }),
            Value::Object(fields) => fields.iter().find(|(name, _)| is_called(name, step)).map(|(_, value)| value),
            _ => None,
        })?),
    }
}

fn is_called(name: &str, step: &str) -> bool {
    name == step || name.replace(", ", "-").replace(' ', "-") == step
}

fn sum(value: &Value) -> Option<f64> {
    value.as_object().map_or_else(|| value.as_f64(), |fields| fields.values().map(Value::as_f64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = "{\"machine\":{\"git_commit\":\"0123456789ab\"},\"rows\":[{\"name\":\"us\",\"s\":2.345,\"share\":0.5,\
                          \"n\":{\"a\":1000,\"b\":500}},{\"name\":\"them\",\"s\":4.69},{\"run\":\"us, again\",\"wait, ms\":3}]}";

    fn found(page: &str) -> Vec<String> {
        check(&Workspace::of(&[("README.md", page), ("r/a.json", RESULT)]))
    }

    #[test]
    fn figures_of_a_result_are_right_and_their_commit_is_named() {
        let by_file = "# A\nat 0123456\n<!-- figures r/a.json rows/$1/s rows/$1/share rows/$1/n rows/them/s:rows/$1/s -->\n\
                       | | s |\n|---|---|\n| **us** | 2.35 (50.0 %) | 1\u{202f}500 | 2.0 × |\n\n| other | 7 |\n";
        let by_row = "# A\nat 0123456\n<!-- figures rows/$1/$2 -->\n| | s |\n|-|-|\n| [theirs, 3 of them](r/a.json#them,s) | 4.7 s |\n";
        let by_words =
            "# A\nat 0123456\n<!-- figures r/a.json rows/us-again/wait-ms -->\n| | ms |\n|-|-|\n| once more | 3 |\n";
        assert_eq!([found(by_file), found(by_row), found(by_words)].concat(), Vec::<String>::new());
    }

    #[test]
    fn wrong_old_missing_and_unchecked_figures_are_found() {
        let table = |words: &str, row: &str| found(&format!("# A\n{words}\n| | s |\n|-|-|\n{row}\n# B\n"));
        let named = "at 0123456\n<!-- figures r/a.json rows/$1/s -->";
        for (words, row, complaint) in [
            (named, "| us | 2.34 |", "2.34 is 2.35 at rows/us/s of r/a.json"),
            ("<!-- figures r/a.json rows/$1/s -->", "| us | 2.35 |", "was measured at 0123456789ab"),
            (named, "| us | two |", "no number for"),
            (named, "| us | 2.35 | 3 |", "no path for 3"),
            (named, "| who | 2.35 |", "has no number at rows/who/s"),
            ("<!-- figures r/b.json rows/$1/s -->", "| us | 2.35 |", "there is no r/b.json"),
            ("at 0123456", "| [us](r/a.json) | 2.35 |", "no comment says"),
        ] {
            let problems = table(words, row);
            assert!(problems.len() == 1 && problems[0].contains(complaint), "{complaint}: {problems:?}");
        }
    }
}
