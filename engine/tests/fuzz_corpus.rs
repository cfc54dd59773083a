//! Every parser of this crate over its corpus.
#[path = "../wire/tests/fuzz_corpus/runner.rs"]
mod runner;

use fuelrail::fuzz;

/// One test a target, and one that says when a target has none.
macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let target = fuzz::OWN.into_iter().find(|(known, _)| *known == stringify!($name));
            runner::run(stringify!($name), target.expect("a target of this name").1);
        })*

        #[test]
        fn every_target_is_run() {
            let known: Vec<&str> = fuzz::OWN.into_iter().map(|(name, _)| name).collect();
            assert_eq!(known, [$(stringify!($name)),*]);
        }
    };
}

targets! { audit config credentials listing picture saved }
