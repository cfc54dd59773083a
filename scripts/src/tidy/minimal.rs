//! How much the engine takes along without its features. That build is for programs that read folders, or plain HTTP by a manifest: a
//! dependency that it does not need belongs to a feature.

use super::workspace::Workspace;

/// Packages, ours included.
const PACKAGES_MAX: usize = 59;

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let packages = workspace.minimal.len();
    let problem = format!(
        "engine/Cargo.toml: without features fuelrail compiles {packages} packages, the limit is {PACKAGES_MAX}: see `cargo tree -p \
         fuelrail --no-default-features -e normal`, and make what is new optional"
    );
    (packages > PACKAGES_MAX).then_some(problem).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_package_too_many_is_found() {
        let found = |packages: usize| {
            let minimal = (0..packages).map(|n| format!("p{n} v1.0.0")).collect();
            check(&Workspace { minimal, ..Workspace::default() }).len()
        };
        assert_eq!((found(PACKAGES_MAX), found(PACKAGES_MAX + 1)), (0, 1));
    }
}
