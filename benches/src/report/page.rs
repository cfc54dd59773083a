//! What every page has: the document around its body, and figures with captions.
//!
//! Owns the style sheet.

const STYLE: &str = include_str!("style.css");

/// A whole document; `title` and `body` are markup already.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// A drawing with its caption; both are markup already.
pub(super) fn figure(title: &str, caption: &str, drawing: &str) -> String {
    format!("<figure>\n<figcaption><h2>{title}</h2><p>{caption}</p></figcaption>\n{drawing}\n</figure>\n")
}
