//! What every page has: the document around its body, and figures with captions.
//!
//! Owns the style sheet.

use super::svg::escape;

const STYLE: &str = include_str!("style.css");

/// A whole document; `title` and `body` are markup already.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// A drawing with its caption; both are markup already.
pub fn figure(title: &str, caption: &str, drawing: &str) -> String {
    format!("<figure>\n<figcaption><h2>{title}</h2><p>{caption}</p></figcaption>\n{drawing}\n</figure>\n")
}

/// A row of a table: its class, its name, and the cells behind that, as text.
pub fn line(class: &str, name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
    format!("<tr class=\"{class}\"><th scope=\"row\">{}</th>{cells}</tr>\n", escape(name))
}

/// A table that may be wider than the page; `rows` is markup already.
pub fn wide(heads: &[&str], rows: &str) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    format!("<div class=\"wide\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n")
}

/// Where and how something was measured: names of facts, and what they are.
pub fn place(facts: &[(&str, String)]) -> String {
    let facts: String = facts.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", escape(text))).collect();
    format!("<section>\n<h2>Where and how</h2>\n<dl>{facts}</dl>\n</section>\n")
}
