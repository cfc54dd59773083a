//! Settings by their names, of files, variables and arguments: found, or refused with the one that was perhaps meant.

use super::settings::{Config, Setting};
use fuelrail_base::{Error, Kind, Result};

impl Config {
    /// A setting, by its field in a group, or by its name or key.
    pub(super) fn setting(group: &str, name: &str) -> Option<&'static Setting> {
        Config::SETTINGS.iter().find(|setting| {
            (group == setting.group && name == setting.field)
                || ([setting.group, ""].contains(&group) && [setting.name, setting.key].contains(&name))
        })
    }

    /// The same, or a refusal with the name that was perhaps meant, as `written` where the wrong one stands.
    pub(super) fn known(group: &str, name: &str, written: impl Fn(&str) -> String) -> Result<&'static Setting> {
        let dotted =
            |group: &str, name: &str| if group.is_empty() { name.to_owned() } else { format!("{group}.{name}") };
        Config::setting(group, name).ok_or_else(|| {
            let place = |setting: &Setting| dotted(setting.group, setting.field);
            // In another table than its own it is that setting.
            let elsewhere = Config::setting("", name).map(place);
            let names = Config::SETTINGS.iter().flat_map(|setting| match group {
                "" => vec![setting.name.to_owned(), setting.key.to_owned()],
                _ => vec![place(setting)],
            });
            let wrong = dotted(group, name);
            let meant = elsewhere.or_else(|| meant(&wrong, names));
            let all = || "engine/docs/SETTINGS.md lists the settings".to_owned();
            let hint = meant.map_or_else(all, |meant| format!("did you mean {}?", written(&meant)));
            Error::new(Kind::Usage, format!("there is no setting '{}'", wrong.escape_debug())).with_hint(hint)
        })
    }

    /// The setting that an environment variable is, if it is one of ours.
    pub(super) fn of_variable(name: &str) -> Result<Option<&'static Setting>> {
        let Some(key) = name.strip_prefix("FUELRAIL_") else { return Ok(None) };
        // Kubernetes gives every pod beside a service that is called fuelrail its addresses.
        if ["SERVICE_HOST", "SERVICE_PORT", "PORT"].contains(&key)
            || key.starts_with("SERVICE_PORT_")
            || key.starts_with("PORT_")
        {
            return Ok(None);
        }
        let written = |meant: &str| format!("FUELRAIL_{}", meant.to_ascii_uppercase());
        let known = Config::known("", &key.to_ascii_lowercase(), written);
        known.map(Some).map_err(|error| error.within(format_args!("environment variable {name}")))
    }
}

/// Of these names the one that was perhaps meant with a wrong one.
fn meant(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let alike = |known: &str| strsim::jaro_winkler(known, name);
    // The least unlike of names that are all unlike is no help: one that begins alike is, or one of which a third at most differs.
    let is_near = |known: &String| alike(known) > 0.85 || 3 * strsim::levenshtein(known, name) <= name.chars().count();
    names.max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(is_near)
}
