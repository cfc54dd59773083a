//! `cargo x bench line`: what reading costs beside the kernel's own copy, on each ring, and beside other people's loaders.

use std::path::PathBuf;
use std::process::ExitCode;

use fuelrail::ByteSize;

use super::results::text;
use crate::harness::{Findings, Pass, Turn};
use crate::line::{Line, LineArgs, Step, line};
use crate::rivals::{Programs, Python, RIVALS, Rival};
use fuelrail_cli::bench::this_program;
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, note};
use fuelrail_cli::stop::stop_on_signals;
use fuelrail_cli::train::folders;

pub(crate) fn run(args: &LineArgs) -> Outcome {
    if args.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let program = this_program()?;
    let all = |asked: Vec<&'static Rival>| if asked.is_empty() { RIVALS.iter().collect() } else { asked };
    let benchmark = Line {
        args,
        rivals: args.rivals.clone().map_or_else(Vec::new, all),
        programs: Programs {
            natives: args.rival_program.clone().unwrap_or_else(|| program.with_file_name("fuelrail-rival")),
            python: Python { folder: python_folder(args)? },
            path: folders(&std::env::var_os("PATH").unwrap_or_default()),
        },
        program,
        stop: stop_on_signals()?,
    };
    if args.python {
        benchmark.programs.python.install(&mut |step| note(step))?;
    }
    let bar = Bar::new(Some(0), "");
    let findings = line(&benchmark, &mut |step| show(&bar, step))?;
    drop(bar);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether every bar holds and every floor and the loader came through. A rival need not be there.
fn holds(findings: &Findings) -> bool {
    let is_rival = |name: &String| RIVALS.iter().any(|rival| rival.name == name);
    findings.contests.iter().all(|contest| {
        let through = contest.contestants.iter().all(|scored| scored.failure.is_none() || is_rival(&scored.name));
        let absent = |holds: Option<bool>, to: &[String]| holds.is_none() && to.iter().any(is_rival);
        through && contest.bars.iter().all(|bar| bar.holds == Some(true) || absent(bar.holds, &bar.bar.to))
    })
}

fn python_folder(args: &LineArgs) -> Outcome<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    match args.python_dir.clone().or_else(|| Some(cache()?.join("fuelrail/rivals"))) {
        None if args.rivals.is_some() => {
            let cause = "there is no cache folder: neither XDG_CACHE_HOME nor HOME is set";
            Err(usage(cause, "give --python-dir"))
        }
        folder => Ok(folder.unwrap_or_default()),
    }
}

/// Shows a step on a progress bar over turns, with the contest's and the contestant's name beside it; where no terminal watches, a line
/// for everything that is done.
fn show(bar: &Bar, step: Step<'_>) {
    match step {
        Step::Laying(shape, done, total) => {
            let shape = shape.word();
            bar.total(total >> 20);
            bar.at(done >> 20, || format!("MiB of {shape} written"));
            if bar.is_hidden() && done == total {
                note(&format!("{shape}: {} written", ByteSize(total)));
            }
        }
        Step::Turn(contest, Turn { name, stage, done, total, ended }) => {
            bar.total(total.into());
            bar.at(done.into(), || format!("{contest}: {name}"));
            if let (true, Some(ended)) = (bar.is_hidden(), ended) {
                note(&format!("{contest}, {stage}, {name} ({} of {total}): {}", done + 1, came_to(ended)));
            }
        }
    }
}

/// What a pass came to, in a few words.
fn came_to(ended: Result<&Pass, &str>) -> String {
    match ended {
        Ok(pass) => {
            let cost = pass.cpu_s_per_gb().map_or_else(String::new, |cost| format!(", {cost:.3} CPU-s/GB"));
            format!("{:.2} s{cost}", pass.wall_s)
        }
        Err(why) => format!("failed, {why}"),
    }
}
