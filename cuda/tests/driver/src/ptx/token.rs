//! PTX text as words and marks, each with its line.
//!
//! Owns the comments and what a word is. Knows no instruction.

/// One word (`ld.global.u8`, `%rd1`, `.param`, `0f3F800000`) or one mark (`{`, `;`, `@`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Cuts a text.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (piece, after) = rest.split_at(length);
        if !first.is_whitespace() && !piece.starts_with("//") && !piece.starts_with("/*") {
            tokens.push(Token { text: piece.to_owned(), line });
        }
        line += piece.matches('\n').count();
        rest = after;
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_marks_and_lines() {
        let found = tokens("@!%p1 bra $L; // away\n/* two\nlines */ ld.u8 %r, [%rd+-4];");
        let texts: Vec<&str> = found.iter().map(|t| t.text.as_str()).collect();
        let expected = ["@", "!", "%p1", "bra", "$L", ";", "ld.u8", "%r", ",", "[", "%rd", "+", "-", "4", "]", ";"];
        assert_eq!(texts, expected);
        assert_eq!((found[0].line, found[6].line), (1, 3));
    }
}
