//! Every parser of this crate over its corpus.

#[expect(clippy::disallowed_methods, reason = "the corpus is read from files; the crate under test never does")]
mod runner;

use fuelrail_wire::fuzz;

/// One test a target, and one that says when a target has none.
macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let target = fuzz::TARGETS.into_iter().find(|(known, _)| *known == stringify!($name));
            runner::run(stringify!($name), target.expect("a target of this name").1);
        })*

        #[test]
        fn every_target_is_run() {
            let known: Vec<&str> = fuzz::TARGETS.into_iter().map(|(name, _)| name).collect();
            assert_eq!(known, [$(stringify!($name)),*]);
        }
    };
}

targets! { answers block dates framing head kept list manifest proxy records uri }
