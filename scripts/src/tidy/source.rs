//! A Rust file read as tokens: its functions and what they call, the items it defines and the paths it names. Tokens, not a syntax tree:
//! what a macro's braces hold counts like everything else.

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// What one file says. All but the functions is without what is compiled for tests only.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) functions: Vec<Function>,
    pub(super) items: BTreeSet<String>,
    /// Modules whose bodies are in files of their own.
    pub(super) children: Vec<String>,
    /// Paths that the code names, as seen from the file's own module, with their lines. What `pub use` hands on is not among them.
    pub(super) paths: Vec<(Vec<String>, usize)>,
}

#[derive(Debug)]
pub(super) struct Function {
    /// The module inside the file, empty at the top.
    pub(super) module: String,
    /// `name` or `Type::name`.
    pub(super) name: String,
    /// What it calls, as `name` or `Type::name`.
    pub(super) calls: BTreeSet<String>,
    pub(super) is_test: bool,
    pub(super) is_ignored: bool,
}

/// Reads one file.
///
/// # Errors
/// When the text is not made of Rust's tokens.
pub(super) fn read(text: &str) -> Result<Source, LexError> {
    let mut source = Source::default();
    source.walk(text.parse()?, &Scope::default());
    Ok(source)
}

/// Joins two paths; either may be empty.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() || name.is_empty() { format!("{path}{name}") } else { format!("{path}::{name}") }
}

/// Where some tokens stand.
#[derive(Clone, Default)]
struct Scope {
    module: String,
    /// The type of an `impl` or the trait; empty outside.
    owner: String,
    /// The innermost function.
    function: Option<usize>,
    in_test: bool,
}

impl Source {
    fn walk(&mut self, tokens: TokenStream, scope: &Scope) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // The item that begins: its attributes, and the scope of its braces.
        let (mut attributes, mut is_headed, mut inner) = (Vec::new(), false, scope.clone());
        let mut at = 0;
        while at < tokens.len() {
            let mut ends = false;
            match &tokens[at] {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    at += usize::from(is_punct(tokens.get(at + 1), '!'));
                    if let Some(TokenTree::Group(group)) = tokens.get(at + 1) {
                        let text = group.stream().to_string().replace(' ', "");
                        inner.in_test |= text == "cfg(test)" || text.starts_with("cfg(all(test,");
                        attributes.push(text);
                        at += 1;
                    }
                }
                TokenTree::Punct(mark) => ends = mark.as_char() == ';' || mark.as_char() == ',' && !is_headed,
                TokenTree::Group(group) => {
                    self.walk(group.stream(), &inner);
                    ends = group.delimiter() == Delimiter::Brace;
                }
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    let is_head = self.head(&word, &tokens[at + 1..], scope, &mut inner, &attributes);
                    is_headed |= is_head || word == "impl";
                    at = match word.as_str() {
                        "pub" if is_restriction(tokens.get(at + 1)) => at + 1,
                        "use" if !is_punct(tokens.get(at + 1), '<') => self.import(&tokens, at, &inner),
                        _ if is_head => at + 1,
                        _ => self.path(&tokens, at, &inner),
                    };
                }
                TokenTree::Literal(_) => {}
            }
            if ends {
                (attributes, is_headed, inner) = (Vec::new(), false, scope.clone());
            }
            at += 1;
        }
    }

    /// Takes note of an item that begins with this word. Whether its name is next.
    fn head(
        &mut self,
        word: &str,
        rest: &[TokenTree],
        scope: &Scope,
        inner: &mut Scope,
        attributes: &[String],
    ) -> bool {
        match (word, name(rest.first())) {
            ("impl", _) => {
                inner.owner = implementor(rest);
                return false;
            }
            ("mod", Some(name)) => {
                inner.module = join(&scope.module, &name);
                if is_punct(rest.get(1), ';') && !inner.in_test {
                    self.children.push(inner.module.clone());
                }
            }
            ("fn", Some(name)) => {
                let named = |a: &str, wanted| {
                    a.split(['(', '=']).next().and_then(|path| path.rsplit("::").next()) == Some(wanted)
                };
                let has = |wanted| attributes.iter().any(|attribute| named(attribute, wanted));
                let (module, is_test, is_ignored) = (scope.module.clone(), has("test"), has("ignore"));
                inner.in_test |= is_test;
                inner.function = Some(self.functions.len());
                let full = join(&scope.owner, &name);
                self.functions.push(Function { module, name: full, calls: BTreeSet::new(), is_test, is_ignored });
                self.define(name, scope, inner);
            }
            ("struct" | "enum" | "union" | "type", Some(name)) => self.define(name, scope, inner),
            // Not `&'static T`, `*const T` or `const fn`.
            ("static" | "const", Some(name)) if is_punct(rest.get(1), ':') && !is_punct(rest.get(2), ':') => {
                self.define(name, scope, inner);
            }
            ("trait", Some(name)) => {
                inner.owner.clone_from(&name);
                self.define(name, scope, inner);
            }
            _ => return false,
        }
        true
    }

    fn define(&mut self, name: String, scope: &Scope, inner: &Scope) {
        if !inner.in_test && scope.owner.is_empty() && scope.function.is_none() {
            self.items.insert(name);
        }
    }

    /// Reads the `use` at `at`, and says where it ends.
    fn import(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) -> usize {
        let end = tokens[at..].iter().position(|token| is_punct(Some(token), ';')).map_or(tokens.len(), |n| at + n);
        let is_public = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "pub");
        let before = &tokens[..at];
        let handed_on = match before {
            [.., public, TokenTree::Group(_)] | [.., public] => is_public(public),
            [] => false,
        };
        if !handed_on {
            self.leaves(&tokens[at + 1..end], &[], scope);
        }
        end - 1
    }

    /// The leaves of a `use` tree.
    fn leaves(&mut self, tokens: &[TokenTree], prefix: &[String], scope: &Scope) {
        for tree in tokens.split(|token| is_punct(Some(token), ',')) {
            let mut path = prefix.to_vec();
            for token in tree {
                match token {
                    TokenTree::Group(group) => {
                        self.leaves(&group.stream().into_iter().collect::<Vec<_>>(), &path, scope);
                        path.clear();
                    }
                    TokenTree::Ident(word) if word == "as" => break,
                    TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                    TokenTree::Punct(star) if star.as_char() == '*' => path.push("*".to_owned()),
                    _ => path.extend(name(Some(token))),
                }
            }
            if let Some(first) = tree.first().filter(|_| !path.is_empty()) {
                self.record(path, first, scope);
            }
        }
    }

    /// Reads the path at `at`, and says where its last name is.
    fn path(&mut self, tokens: &[TokenTree], start: usize, scope: &Scope) -> usize {
        let (mut at, mut path) = (start, Vec::from_iter(name(tokens.get(start))));
        while let [TokenTree::Ident(_), TokenTree::Punct(one), TokenTree::Punct(two), next @ TokenTree::Ident(_), ..] =
            &tokens[at..]
            && (one.as_char(), two.as_char()) == (':', ':')
        {
            path.extend(name(Some(next)));
            at += 3;
        }
        if let (Some(TokenTree::Group(_)), Some(function)) = (tokens.get(at + 1), scope.function) {
            self.functions[function].calls.insert(path[path.len().saturating_sub(2)..].join("::"));
        }
        if path.len() > 1
            && !(start > 0 && is_punct(tokens.get(start - 1), ':') && is_punct(tokens.get(start.wrapping_sub(2)), ':'))
        {
            self.record(path, &tokens[start], scope);
        }
        at
    }

    fn record(&mut self, mut path: Vec<String>, token: &TokenTree, scope: &Scope) {
        // From a module inside the file, `super` is first the file's own.
        let depth = scope.module.split("::").filter(|module| !module.is_empty()).count();
        let above = path.iter().take_while(|name| *name == "super").count();
        if scope.in_test || depth > 0 && (above < depth && path.first().is_none_or(|name| name != "crate")) {
            return;
        }
        path.drain(..above.min(depth));
        self.paths.push((path, token.span().start().line));
    }
}

/// The type of an `impl`: the last name outside angle brackets before its braces or `where`.
fn implementor(tokens: &[TokenTree]) -> String {
    let (mut depth, mut found) = (0, String::new());
    for token in tokens {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '<' => depth += 1,
            TokenTree::Punct(mark) if mark.as_char() == '>' => depth -= 1,
            TokenTree::Ident(word) if word == "where" => break,
            TokenTree::Ident(word) if depth == 0 => found = word.to_string(),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            _ => {}
        }
    }
    found
}

/// The text of a name, without the mark of a raw one.
fn name(token: Option<&TokenTree>) -> Option<String> {
    let Some(TokenTree::Ident(word)) = token else { return None };
    Some(word.to_string().trim_start_matches("r#").to_owned())
}

fn is_punct(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

/// Whether this is the `(in path)` of a visibility.
fn is_restriction(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.stream().to_string().starts_with("in "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_items_are_read_without_what_is_only_for_tests() {
        let source = read(
            "use crate::a::{self, b as c, d::*};\npub use child::Thing; pub(crate) const fn f(x: &'static T) { vec![crate::x::y()] }\n\
             pub(in crate::hidden) struct S; static K: *const q::R = 0; mod far;\n\
             #[cfg(test)] mod tests { use super::*; fn g() { crate::only::here(); } }\n#[cfg(test)] use no::t;\n\
             impl<A, B> k::Trait<A> for S<B> { const fn m() {} } mod near { enum E { V(super::super::z::Z, super::y) } }",
        )
        .unwrap();
        let paths: Vec<_> = source.paths.iter().map(|(path, line)| format!("{line} {}", path.join("::"))).collect();
        let expected = [
            "1 crate::a",
            "1 crate::a::b",
            "1 crate::a::d::*",
            "2 crate::x::y",
            "3 q::R",
            "6 k::Trait",
            "6 super::z::Z",
            "6 y",
        ];
        assert_eq!(paths, expected);
        assert_eq!(source.items, ["E", "K", "S", "f"].map(str::to_owned).into());
        assert_eq!(source.children, ["far"]);
        assert_eq!(source.functions.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["f", "g", "S::m"]);
        assert!(read("fn f( {").is_err());
    }

    #[test]
    fn tests_and_what_they_call_are_found_also_inside_macros() {
        let source = read(
            "mod tests { #[test] fn plain() {} #[tokio::test] #[ignore = \"slow\"] async fn waits() {} fn not_one() { io::Nginx::start(1) } }\n\
             proptest! { #![config] #[test] fn property(x in 0..3) { if let Some(_) = helped() {} } }",
        )
        .unwrap();
        let said = |f: &Function| format!("{}|{}|{}|{}|{:?}", f.module, f.name, f.is_test, f.is_ignored, f.calls);
        let said: Vec<_> = source.functions.iter().map(said).collect();
        let expected =
            ["tests|plain|true|false|{}", "tests|waits|true|true|{}", "tests|not_one|false|false|{\"Nginx::start\"}"];
        assert_eq!(said[..3], expected);
        assert_eq!(said[3], "|property|true|false|{\"Some\", \"helped\"}");
    }
}
