//! Enums whose variants have names: in configuration, on command lines, in reports.

use crate::{Error, Kind};

/// Gives an enum without fields the list of its variants, their names, and parsing by name; errors list all names.
///
/// ```
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// enum Colour { Red, Green }
/// fuelrail_base::named!(Colour, "a colour": Red = "red", Green = "green");
/// assert_eq!("green".parse(), Ok(Colour::Green));
/// assert_eq!("blue".parse::<Colour>().unwrap_err().to_string(), "'blue' is not a colour; use red or green");
/// ```
#[macro_export]
macro_rules! named {
    ($name:ident, $what:literal: $($variant:ident = $word:literal),+ $(,)?) => {
        impl $name {
            /// All of them, for help texts and tests.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// The name as written in configuration and reports.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.word())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<$name> {
                let found = $name::ALL.into_iter().find(|name| name.word() == text);
                found.ok_or_else(|| $crate::named::unknown(text, $what, &[$($word),+]))
            }
        }
    };
}

/// The error for an unknown name.
#[doc(hidden)]
#[must_use]
pub fn unknown(text: &str, what: &str, words: &[&str]) -> Error {
    let (last, others) = words.split_last().expect("an enum has a variant");
    let all = if others.is_empty() { (*last).to_owned() } else { format!("{} or {last}", others.join(", ")) };
    Error::new(Kind::Usage, format!("'{text}' is not {what}")).with_hint(format!("use {all}"))
}
