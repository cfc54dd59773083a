//! Key patterns: `*` stands for any run of characters, slashes included, `?` for one character; the rest is literal.

/// Whether the whole of `key` matches `pattern`.
pub(crate) fn matches(pattern: &str, key: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => key.is_empty(),
        Some('*') => {
            let mut ends = key.char_indices().map(|(at, _)| at).chain([key.len()]);
            ends.any(|at| matches(rest.as_str(), &key[at..]))
        }
        Some(wanted) => {
            let mut others = key.chars();
            others.next().is_some_and(|c| wanted == '?' || wanted == c) && matches(rest.as_str(), others.as_str())
        }
    }
}

/// Whether any pattern matches.
pub(crate) fn any_matches(patterns: &[String], key: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, key))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, key) in [
            ("*", ""),
            ("*", "a/b"),
            ("a*", "a"),
            ("*.png", "t/1.png"),
            ("t/*/?.png", "t/a/b/1.png"),
            ("a*b*c", "aXbYbZc"),
            ("ä?", "äö"),
        ] {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in [("", "a"), ("?", ""), ("a*b", "ac"), ("*.png", "1.jpg"), ("abc", "abcd"), ("a?", "a")] {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }
}
