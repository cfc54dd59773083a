//! Key patterns: `*` stands for any run of characters, slashes included, `?` for one character; the rest is literal.

/// Whether the whole of `key` matches `pattern`.
pub(crate) fn matches(pattern: &str, key: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let key: Vec<char> = key.chars().collect();
    let (mut p, mut k) = (0, 0);
    // The last star seen and how much of the key it has taken so far; a mismatch lets it take one more.
    let mut star: Option<(usize, usize)> = None;
    while k < key.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, k));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == key[k]) {
            p += 1;
            k += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            k = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
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
