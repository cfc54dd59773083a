//! The lab's program, `cargo x bench`. Owns nothing: the command line is the library's.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    fuelrail_benches::command::main()
}
