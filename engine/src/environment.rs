//! The environment variables that the clouds' own tools read. Read in one place, and given in tests.

use fuelrail_base::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The variables that this process was started with, for [`Config::load`](crate::Config::load) and
/// [`Access::load`](crate::Access::load). Those that are not UTF-8 are passed over, but for our own.
///
/// # Errors
/// `Usage` naming a variable `FUELRAIL_…` that is not UTF-8.
pub fn environment_variables() -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => variables.push((name, value)),
            (name, _) => {
                let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                if name.starts_with("FUELRAIL_") {
                    let cause = format!("the environment variable {} is not UTF-8", name.escape_debug());
                    return Err(Error::new(Kind::Usage, cause).with_hint("set it to text, or unset it"));
                }
            }
        }
    }
    Ok(variables)
}

/// Where the variables of the clouds' tools (`AWS_…`, `AZURE_…`, `GOOGLE_…`) are read from. Prints their names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Environment {
    /// From what the process was started with.
    #[default]
    Process,
    /// From these, and nowhere else.
    Given(BTreeMap<String, Zeroizing<String>>),
}

impl Environment {
    /// These variables, and no others.
    pub fn given(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        Environment::Given(variables.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }

    /// The variables that credentials and proxies depend on, with the values that they have at present.
    pub(crate) fn snapshot(&self) -> Environment {
        let Environment::Process = self else { return self.clone() };
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Environment::given(std::env::vars_os().filter_map(text).filter(|(name, _)| is_of_credentials(name)))
    }

    /// A variable's value. An empty one counts as none, as it does for the vendors' tools.
    pub(crate) fn get(&self, name: &str) -> Option<Zeroizing<String>> {
        let value = match self {
            Environment::Process => std::env::var(name).ok().map(Zeroizing::new),
            Environment::Given(variables) => variables.get(name).cloned(),
        };
        value.filter(|value| !value.is_empty())
    }

    /// A variable's value, for what is no secret.
    pub(crate) fn plain(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.to_string())
    }

    /// The value of the first of these variables that has one.
    pub(crate) fn first<const N: usize>(&self, names: [&str; N]) -> Option<String> {
        names.into_iter().find_map(|name| self.plain(name))
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.plain(name).map(PathBuf::from)
    }

    /// A file below the user's own folder.
    pub(crate) fn at_home(&self, below: &str) -> Option<PathBuf> {
        self.path("HOME").map(|home| home.join(below))
    }
}

/// Whether credentials, or the proxy that they are fetched through, depend on this variable.
fn is_of_credentials(name: &str) -> bool {
    const PREFIXES: [&str; 6] = ["AWS_", "AZURE_", "CLOUDSDK_", "GCE_", "GOOGLE_", "IDENTITY_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || ["HOME", "REQUEST_METHOD"].contains(&name)
        || name.to_ascii_lowercase().ends_with("_proxy")
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Environment::Process => f.write_str("Process"),
            Environment::Given(variables) => f.debug_set().entries(variables.keys()).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_printed_and_empty_ones_are_none() {
        let given = Environment::given([("A".into(), "marked".into()), ("B".into(), String::new())]);
        assert_eq!(format!("{given:?}"), r#"{"A", "B"}"#);
        assert_eq!((given.plain("A").as_deref(), given.plain("B"), given.plain("C")), (Some("marked"), None, None));
    }

    #[test]
    fn a_snapshot_has_the_variables_of_credentials_and_no_others() {
        let Environment::Given(variables) = Environment::Process.snapshot() else { panic!("it changes as they do") };
        assert!(variables.keys().all(|name| is_of_credentials(name) && std::env::var(name).is_ok()));
        for name in ["AWS_PROFILE", "AZURE_CLIENT_ID", "GCE_METADATA_HOST", "HOME", "https_proxy", "NO_PROXY"] {
            assert!(is_of_credentials(name), "{name}");
            assert_eq!(variables.contains_key(name), std::env::var(name).is_ok(), "{name}");
        }
        assert!(!is_of_credentials("PATH"));
    }
}
