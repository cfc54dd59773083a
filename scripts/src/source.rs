//! One Rust source file, read for the facts the checks need: functions, tests, imports, paths, modules, `unsafe`.
//!
//! Built on `syn` for structure and on the bare tokens for what sits inside macros. Knows nothing of other files.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What one file says.
#[derive(Debug, Default)]
pub struct Source {
    /// Every function with a body.
    pub functions: Vec<Function>,
    /// Every test function.
    pub tests: Vec<Test>,
    /// Every path that names something elsewhere: `use` leaves and paths of two or more segments.
    pub paths: Vec<PathUse>,
    /// Modules declared or written inline.
    pub modules: Vec<Module>,
    /// Names brought into scope by `use`: module inside the file, name, and what it stands for.
    pub imports: Vec<Import>,
    /// Items defined here: module inside the file and name.
    pub items: BTreeSet<(String, String)>,
    /// Types and traits with their line.
    pub types: Vec<(String, usize)>,
    /// Lines with the keyword `unsafe`, in code.
    pub unsafe_lines: Vec<usize>,
    /// Whether the file opens with `#![forbid(unsafe_code)]`.
    pub forbids_unsafe: bool,
}

/// A function with a body.
#[derive(Debug)]
pub struct Function {
    /// `Type::name` or `name`.
    pub name: String,
    /// Line of its `fn`.
    pub line: usize,
    /// Lines from its `fn` to its closing brace.
    pub lines: usize,
}

/// A test function.
#[derive(Debug)]
pub struct Test {
    /// Module inside the file, `a::b`, empty at the top.
    pub module: String,
    /// Function name.
    pub name: String,
    /// Whether it carries `#[ignore]`.
    pub ignored: bool,
}

/// A path as written, and where.
#[derive(Clone, Debug)]
pub struct PathUse {
    /// Module inside the file.
    pub module: String,
    /// Its segments; a glob import ends in `*`.
    pub segments: Vec<String>,
    /// Its line.
    pub line: usize,
    /// Whether it stands in code that is compiled for tests only.
    pub in_test: bool,
    /// Whether it is the leaf of a `use` that hands the name on (`pub use`).
    pub handed_on: bool,
}

/// A module declared or written inline.
#[derive(Debug)]
pub struct Module {
    /// Module that contains it, inside the file.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// Its line.
    pub line: usize,
    /// Whether its body is in another file.
    pub elsewhere: bool,
    /// The file named by a `#[path]` attribute.
    pub path: Option<String>,
    /// Whether it is compiled for tests only.
    pub in_test: bool,
}

/// A name brought into scope.
#[derive(Debug)]
pub struct Import {
    /// Module inside the file.
    pub module: String,
    /// The name; `*` for a glob.
    pub name: String,
    /// What it stands for.
    pub target: Vec<String>,
}

/// Reads one file.
///
/// # Errors
/// The line and the complaint, when the text is not valid Rust.
pub fn parse(text: &str) -> Result<Source, (usize, String)> {
    let fault = |e: syn::Error| (e.span().start().line, e.to_string());
    let file = syn::parse_file(text).map_err(fault)?;
    let mut reader = Reader { test_depth: usize::from(only_for_tests(&file.attrs)), ..Reader::default() };
    reader.source.forbids_unsafe = file.attrs.iter().any(|a| {
        a.path().is_ident("forbid")
            && a.parse_args::<syn::Path>().is_ok_and(|p| p.get_ident().is_some_and(|i| i == "unsafe_code"))
    });
    reader.visit_file(&file);
    let tokens: TokenStream =
        text.parse().map_err(|e: proc_macro2::LexError| (e.span().start().line, e.to_string()))?;
    find_unsafe(tokens, &mut reader.source.unsafe_lines);
    Ok(reader.source)
}

#[derive(Default)]
struct Reader {
    source: Source,
    modules: Vec<String>,
    types: Vec<String>,
    test_depth: usize,
}

impl Reader {
    fn module(&self) -> String {
        self.modules.join("::")
    }

    fn define(&mut self, name: &syn::Ident) {
        let module = self.module();
        self.source.items.insert((module, plain(name)));
    }

    fn within<R>(&mut self, attrs: &[syn::Attribute], act: impl FnOnce(&mut Reader) -> R) -> R {
        let depth = usize::from(only_for_tests(attrs));
        self.test_depth += depth;
        let result = act(self);
        self.test_depth -= depth;
        result
    }

    fn function(&mut self, attrs: &[syn::Attribute], sig: &syn::Signature, block: &syn::Block) {
        let line = sig.fn_token.span.start().line;
        let end = block.brace_token.span.close().end().line;
        let short = plain(&sig.ident);
        let name = self.types.last().map_or_else(|| short.clone(), |t| format!("{t}::{short}"));
        self.source.functions.push(Function { name, line, lines: end + 1 - line });
        if is_test(attrs) {
            let ignored = attrs.iter().any(|a| a.path().is_ident("ignore"));
            let module = self.module();
            self.source.tests.push(Test { module, name: short, ignored });
        }
    }

    fn path(&mut self, segments: Vec<String>, line: usize, handed_on: bool) {
        let (module, in_test) = (self.module(), self.test_depth > 0);
        self.source.paths.push(PathUse { module, segments, line, in_test, handed_on });
    }

    fn use_tree(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>, handed_on: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(plain(&path.ident));
                self.use_tree(&path.tree, prefix, handed_on);
                prefix.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(tree, prefix, handed_on);
                }
            }
            syn::UseTree::Name(leaf) => self.use_leaf(prefix, &leaf.ident, &leaf.ident, handed_on),
            syn::UseTree::Rename(leaf) => self.use_leaf(prefix, &leaf.ident, &leaf.rename, handed_on),
            syn::UseTree::Glob(glob) => {
                let mut target = prefix.clone();
                target.push("*".to_owned());
                self.import("*".to_owned(), prefix.clone());
                self.path(target, glob.star_token.span.start().line, handed_on);
            }
        }
    }

    fn use_leaf(&mut self, prefix: &[String], ident: &syn::Ident, name: &syn::Ident, handed_on: bool) {
        let mut target = prefix.to_vec();
        if ident != "self" {
            target.push(plain(ident));
        }
        let known_as = if name == "self" { target.last().cloned().unwrap_or_default() } else { plain(name) };
        self.import(known_as, target.clone());
        self.path(target, ident.span().start().line, handed_on);
    }

    fn import(&mut self, name: String, target: Vec<String>) {
        // What tests import must not help to resolve a name in shipping code.
        if self.test_depth == 0 {
            let module = self.module();
            self.source.imports.push(Import { module, name, target });
        }
    }

    /// Paths and tests inside a macro's tokens, where no syntax tree exists.
    fn token_paths(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.token_paths(group.stream()),
                TokenTree::Ident(first) => {
                    let mut segments = vec![plain(first)];
                    while let Some(TokenTree::Ident(next)) = after_colons(&tokens, at) {
                        segments.push(plain(next));
                        at += 3;
                    }
                    if segments.len() > 1 {
                        self.path(segments, first.span().start().line, false);
                    } else if first == "fn"
                        && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
                        && token_attribute(&tokens[..at], "test")
                    {
                        let ignored = token_attribute(&tokens[..at], "ignore");
                        let module = self.module();
                        self.source.tests.push(Test { module, name: plain(name), ignored });
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attrs, name): (&[syn::Attribute], Option<&syn::Ident>) = match item {
            syn::Item::Const(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Enum(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
            syn::Item::Impl(i) => (&i.attrs, None),
            syn::Item::Macro(i) => (&i.attrs, i.ident.as_ref()),
            syn::Item::Mod(i) => (&i.attrs, None),
            syn::Item::Static(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Struct(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Trait(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Type(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Union(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Use(i) => (&i.attrs, None),
            _ => (&[], None),
        };
        if let Some(name) = name {
            self.define(name);
            if matches!(item, syn::Item::Struct(_) | syn::Item::Enum(_) | syn::Item::Trait(_) | syn::Item::Type(_)) {
                self.source.types.push((plain(name), name.span().start().line));
            }
        }
        self.within(attrs, |reader| visit::visit_item(reader, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let path = item.attrs.iter().find(|a| a.path().is_ident("path")).and_then(|a| match &a.meta {
            syn::Meta::NameValue(syn::MetaNameValue {
                value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
                ..
            }) => Some(text.value()),
            _ => None,
        });
        let module = Module {
            parent: self.module(),
            name: plain(&item.ident),
            line: item.ident.span().start().line,
            elsewhere: item.content.is_none(),
            path,
            in_test: self.test_depth > 0,
        };
        self.source.modules.push(module);
        self.modules.push(plain(&item.ident));
        visit::visit_item_mod(self, item);
        self.modules.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let outer = std::mem::take(&mut self.types);
        self.function(&item.attrs, &item.sig, &item.block);
        visit::visit_item_fn(self, item);
        self.types = outer;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|s| plain(&s.ident)),
            _ => None,
        };
        self.types.push(name.unwrap_or_else(|| "impl".to_owned()));
        visit::visit_item_impl(self, item);
        self.types.pop();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.within(&item.attrs, |reader| {
            reader.function(&item.attrs, &item.sig, &item.block);
            visit::visit_impl_item_fn(reader, item);
        });
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.types.push(plain(&item.ident));
        visit::visit_item_trait(self, item);
        self.types.pop();
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let handed_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.use_tree(&item.tree, &mut Vec::new(), handed_on);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path.segments.iter().map(|s| plain(&s.ident)).collect();
            self.path(segments, path.span().start().line, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.token_paths(mac.tokens.clone());
        visit::visit_macro(self, mac);
    }

    // `pub(super)` and `pub(in path)` widen nothing and use nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    // Attributes name macros and lints, not modules of ours.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

/// The identifier's text, without the mark of a raw identifier.
fn plain(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| a.path().segments.last().is_some_and(|s| s.ident == "test"))
}

/// Whether these attributes leave the item out of every build but a test build.
fn only_for_tests(attrs: &[syn::Attribute]) -> bool {
    is_test(attrs)
        || attrs.iter().any(|a| {
            let mut found = false;
            if a.path().is_ident("cfg")
                && let syn::Meta::List(list) = &a.meta
            {
                found = demands_test(list.tokens.clone());
            }
            found
        })
}

/// `test` and `all(…, test, …)` demand a test build; `any(test, …)` and `not(test)` do not.
fn demands_test(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Ident(ident) if ident == "test" => true,
        TokenTree::Group(group) => {
            matches!(at.checked_sub(1).map(|before| &tokens[before]), Some(TokenTree::Ident(i)) if i == "all")
                && demands_test(group.stream())
        }
        _ => false,
    })
}

/// The token after `ident ::` at `at`, if there are two colons.
fn after_colons(tokens: &[TokenTree], at: usize) -> Option<&TokenTree> {
    let colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    (colon(tokens.get(at + 1)) && colon(tokens.get(at + 2))).then(|| tokens.get(at + 3)).flatten()
}

/// Whether `#[name…]` stands among the attributes at the end of these tokens.
fn token_attribute(tokens: &[TokenTree], name: &str) -> bool {
    let mut rest = tokens;
    loop {
        match rest {
            [before @ .., TokenTree::Punct(hash), TokenTree::Group(group)] if hash.as_char() == '#' => {
                if matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(i)) if i == name) {
                    return true;
                }
                rest = before;
            }
            [before @ .., TokenTree::Ident(word)] if *word == "pub" || *word == "async" => rest = before,
            _ => return false,
        }
    }
}

fn find_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            TokenTree::Group(group) => find_unsafe(group.stream(), lines),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(source: &Source, in_test: bool) -> Vec<String> {
        source.paths.iter().filter(|p| p.in_test == in_test).map(|p| p.segments.join("::")).collect()
    }

    #[test]
    fn finds_imports_paths_and_what_is_only_for_tests() {
        let source = parse(
            "use crate::a::{self, b as c, d::*};\npub use child::Thing;\n\
             fn f() { crate::x::y(); let _ = format!(\"{}\", super::z(1)); }\npub(in crate::hidden) struct S;\n\
             #[cfg(test)] mod tests { use super::*; fn g() { crate::only::here(); } }\n\
             #[cfg(not(test))] fn h() { q::r() }",
        )
        .unwrap();
        assert_eq!(
            paths(&source, false),
            ["crate::a", "crate::a::b", "crate::a::d::*", "child::Thing", "crate::x::y", "super::z", "q::r"]
        );
        assert_eq!(paths(&source, true), ["super::*", "crate::only::here"]);
        assert!(source.paths[3].handed_on && !source.paths[0].handed_on);
        let names: Vec<_> = source.imports.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "*", "Thing"]);
    }

    #[test]
    fn measures_functions_past_strings_and_comments() {
        let source = parse(
            "impl S {\n  /// Says }.\n  #[must_use]\n  fn long(&self) -> char {\n    let _ = \"}\";\n    // }\n    '}'\n  }\n}\n\
             fn short() { let _ = r#\"{\"#; }",
        )
        .unwrap();
        let sizes: Vec<_> = source.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(sizes, [("S::long", 4, 5), ("short", 10, 1)]);
    }

    #[test]
    fn finds_tests_also_inside_macros() {
        let source = parse(
            "mod tests { #[test] fn plain() {} #[tokio::test] #[ignore = \"slow\"] async fn waits() {} fn not_one() {} }\n\
             proptest! { #![config] #[test] fn property(x in 0..3) { } fn not_either() {} }",
        )
        .unwrap();
        let tests: Vec<_> = source.tests.iter().map(|t| (t.module.as_str(), t.name.as_str(), t.ignored)).collect();
        assert_eq!(tests, [("tests", "plain", false), ("tests", "waits", true), ("", "property", false)]);
    }

    #[test]
    fn sees_unsafe_in_code_only() {
        let source =
            parse("#![forbid(unsafe_code)]\n// unsafe\nfn f() { \"unsafe\"; }\nfn g() { unsafe { h() } }").unwrap();
        assert_eq!(source.unsafe_lines, [4]);
        assert!(source.forbids_unsafe);
        assert!(!parse("#![deny(unsafe_code)]").unwrap().forbids_unsafe);
        assert_eq!(parse("fn f( {").unwrap_err().0, 1);
    }
}
