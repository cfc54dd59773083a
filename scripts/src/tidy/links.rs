//! What the documents point at exists: relative links, paths of files in backticks, and the test that a link names in its title.

use super::{promises, workspace::Workspace};

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let mut problems = Vec::new();
    let exists = |path: &str| {
        let path = path.trim_end_matches('/');
        let inside = |file: &String| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        workspace.files.contains_key(path) || workspace.files.keys().any(inside)
    };
    // What these two tell of is past.
    let is_page = |path: &str| path.ends_with(".md") && !path.ends_with("CHANGELOG.md") && !path.ends_with("NOTES.md");
    for (page, text) in workspace.files.iter().filter(|(path, _)| is_page(path)) {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (target, title) = link.split_once(' ').unwrap_or((link, ""));
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let target = from(page, target);
            let test = format!("{target}::{}", title.trim_matches('"'));
            if !exists(&target) {
                problems.push(format!("{page}: the link to '{link}' leads nowhere"));
            } else if !title.is_empty() && !promises::runs(workspace, &test) {
                problems.push(format!("{page}: there is no test {test}"));
            }
        }
        let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let is_path = |word: &&str| {
            let (top, rest) = word.split_once('/').unwrap_or_default();
            !top.is_empty() && exists(top) && !rest.contains([' ', ':', '*', '<'])
        };
        let gone = quoted.filter(is_path).filter(|path| !exists(path));
        problems.extend(gone.map(|path| format!("{page}: there is no {path}")));
    }
    problems
}

/// A link of this page as a path from the root.
pub(super) fn from(page: &str, link: &str) -> String {
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for step in link.split('/') {
        match step {
            "." => {}
            ".." => drop(path.pop()),
            step => path.push(step),
        }
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_found() {
        let found = |page: &str| {
            let files = [
                ("engine/docs/a.md", page),
                ("engine/docs/b.md", ""),
                ("engine/tests/c.rs", "#[test]\nfn keeps() {}\n"),
            ];
            check(&Workspace::of(&files))
        };
        let fine = "[b](b.md#part) [c](../tests/c.rs \"keeps\") [web](https://x.example/) `engine/tests/` `engine/tests/c.rs::any` `a/b`";
        assert_eq!(found(fine), Vec::<String>::new());
        for gone in ["[d](d.md)", "[c](../tests/c.rs \"loses\")", "`engine/tests/d.rs`"] {
            assert_eq!(found(gone).len(), 1, "{gone}");
        }
    }
}
