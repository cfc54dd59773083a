//! Profiles in the files of AWS's tools: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Parses the files, follows `source_profile`, and runs a profile's `credential_process`: the only program that the engine runs. The
//! parser is forty lines; a crate for it would know neither nested settings nor which of the two files wins.

use super::roles::{Role, Sts, container, from_environment, instance};
use super::source::{Fetched, Source};
use crate::environment::Environment;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_wire::sign::{Credential, parse_keys};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use zeroize::Zeroizing;

type Settings = BTreeMap<String, Zeroizing<String>>;

/// Both files, merged: `credentials` overrides `config`.
#[derive(Default)]
pub(super) struct Profiles {
    sections: BTreeMap<String, Settings>,
    /// The files that exist, for errors.
    files: Vec<PathBuf>,
}

/// Longest chain of `source_profile`.
const DEPTH_MAX: usize = 8;

impl Profiles {
    /// Reads both files; a missing file counts as empty.
    pub(super) fn read(environment: &Environment) -> Result<Profiles> {
        let mut profiles = Profiles::default();
        for (variable, usual, prefixed) in
            [("AWS_CONFIG_FILE", ".aws/config", true), ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", false)]
        {
            let Some(path) = environment.path(variable).or_else(|| environment.at_home(usual)) else { continue };
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => Zeroizing::new(text),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(Error::from_io(Kind::File, path.display(), e)),
            };
            profiles.add(&text, prefixed).map_err(|e| e.within(path.display()))?;
            profiles.files.push(path);
        }
        Ok(profiles)
    }

    /// Adds the sections of one file. In the configuration, profiles but the default one are called `[profile NAME]`.
    pub(super) fn add(&mut self, text: &str, prefixed: bool) -> Result<()> {
        let mut section: Option<String> = None;
        // How far a section's settings are indented, once there is one.
        let mut level = None;
        for (at, whole) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = whole.trim();
            let indent = whole.len() - whole.trim_start().len();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                level = None;
                let name = rest.split(']').next().unwrap_or_default().trim();
                section = match name.split_once(char::is_whitespace) {
                    Some(("profile", profile)) if prefixed => Some(profile.trim().to_string()),
                    None if !prefixed || name == "default" => Some(name.to_string()),
                    _ => None,
                };
                if let Some(name) = &section {
                    self.sections.entry(name.clone()).or_default();
                }
                continue;
            }
            // Nested settings, as under `s3 =`, are skipped: those farther in than the one before them.
            if level.is_some_and(|level| indent > level) {
                continue;
            }
            level = Some(indent);
            let Some(section) = &section else { continue };
            let Some((name, value)) = line.split_once('=') else {
                return Err(Error::new(Kind::Usage, format!("line {} is neither [section] nor name = value", at + 1)));
            };
            let value = value.split(" #").next().unwrap_or_default().trim();
            let settings = self.sections.entry(section.clone()).or_default();
            settings.insert(name.trim().to_ascii_lowercase(), Zeroizing::new(value.to_string()));
        }
        Ok(())
    }

    /// A setting of a profile.
    pub(super) fn get(&self, profile: &str, setting: &str) -> Option<&str> {
        self.sections.get(profile)?.get(setting).map(|value| value.as_str()).filter(|value| !value.is_empty())
    }

    /// The credential of the profile `name`. `named`: the user chose it, so a missing one is an error.
    pub(super) async fn credential(&self, name: &str, named: bool, service: &Sts<'_>) -> Result<Source> {
        let none = |cause| if named { Err(Error::new(Kind::Usage, cause)) } else { Ok(Err(cause)) };
        if !self.sections.contains_key(name) {
            let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
            let place = if files.is_empty() {
                "there are no AWS files".into()
            } else {
                format!("not in {}", files.join(" or "))
            };
            return none(format!("no profile '{name}': {place}"));
        }
        match self.follow(name, service).await? {
            Some(fetched) => Ok(Ok(fetched)),
            None => none(format!("the profile '{name}' has no keys, role or process")),
        }
    }

    /// The credential of a profile; each role is assumed with the credential of its source profile.
    async fn follow(&self, name: &str, service: &Sts<'_>) -> Result<Option<Fetched>> {
        let mut roles = Vec::new();
        let mut at = name.to_string();
        let mut held = loop {
            if roles.len() > DEPTH_MAX {
                return Err(Error::new(
                    Kind::Usage,
                    format!("the profile '{name}' chains more than {DEPTH_MAX} source profiles"),
                )
                .with_hint("check source_profile in the AWS files for a loop"));
            }
            let get = |setting| self.get(&at, setting);
            let Some(arn) = get("role_arn").filter(|_| !roles.iter().any(|(of, _)| *of == at)) else {
                break self.own(&at, service.now)?;
            };
            let role = Role {
                arn: arn.into(),
                session: get("role_session_name").map(Into::into),
                external_id: get("external_id").map(Into::into),
                duration_s: get("duration_seconds").map(Into::into),
            };
            if let Some(file) = get("web_identity_token_file") {
                break Some(service.assume_with_token(&role, file.as_ref()).await?);
            }
            let (source, kept) = (get("source_profile").map(String::from), get("credential_source").map(String::from));
            roles.push((at.clone(), role));
            match (source, kept) {
                (Some(source), _) => at = source,
                (None, Some(kept)) => break Some(from_source(&kept, service.environment).await?),
                (None, None) => {
                    let cause = format!("the profile '{at}' has a role_arn but no source of credentials for it");
                    return Err(Error::new(Kind::Usage, cause)
                        .with_hint("add source_profile, credential_source or web_identity_token_file"));
                }
            }
        };
        if let (None, Some((of, _))) = (&held, roles.last()) {
            let cause = format!("the profile '{at}', which '{of}' names as its source, has no keys");
            return Err(Error::new(Kind::Usage, cause));
        }
        while let (Some(fetched), Some((_, role))) = (&held, roles.pop()) {
            held = Some(service.assume(&role, &fetched.credential).await?);
        }
        Ok(held)
    }

    /// Keys in the profile itself, or from its `credential_process`.
    fn own(&self, name: &str, now: WallTime) -> Result<Option<Fetched>> {
        let get = |setting| self.get(name, setting);
        if let Some(id) = get("aws_access_key_id") {
            let secret = get("aws_secret_access_key").ok_or_else(|| {
                Error::new(
                    Kind::Usage,
                    format!("the profile '{name}' has aws_access_key_id without aws_secret_access_key"),
                )
            })?;
            return Ok(Some(Fetched::new(Credential::aws(id, secret, get("aws_session_token"))?)));
        }
        if let Some(command) = get("credential_process") {
            return from_program(command, now).map(|credential| Some(Fetched::new(credential)));
        }
        if get("sso_session").is_some() || get("sso_start_url").is_some() {
            return Err(Error::new(
                Kind::Usage,
                format!("the profile '{name}' uses IAM Identity Center (SSO), which is not supported"),
            )
            .with_hint(format!(
                "let the AWS CLI sign in: in another profile, set credential_process = aws configure \
                     export-credentials --profile {name}"
            )));
        }
        Ok(None)
    }
}

/// The keys of a role's `credential_source`.
async fn from_source(name: &str, environment: &Environment) -> Result<Fetched> {
    let source = match name {
        "Environment" => from_environment(environment)?,
        "Ec2InstanceMetadata" => instance(environment).await?,
        "EcsContainer" => container(environment).await?,
        other => {
            return Err(Error::new(Kind::Usage, format!("credential_source is '{other}'"))
                .with_hint("use Environment, Ec2InstanceMetadata or EcsContainer"));
        }
    };
    match source {
        Ok(fetched) => Ok(fetched),
        Err(why) => Err(Error::new(Kind::Denied, format!("credential_source {name}: {why}"))),
    }
}

/// Time limit of a `credential_process`: the user may have to confirm on a phone.
const PATIENCE: Duration = Duration::from_secs(60);
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Runs `command` in a shell, as AWS's tools do, and parses its output.
///
/// # Errors
/// `Denied` when it fails, takes too long or prints no credentials, `Expired` when what it prints has expired. Errors repeat nothing of its output.
fn from_program(command: &str, now: WallTime) -> Result<Credential> {
    let failed = |why: String| {
        Error::new(Kind::Denied, format!("credential_process {why}"))
            .with_hint("run the profile's command in a shell to see what fails")
    };
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = spawned.map_err(|e| failed(format!("cannot be started: {e}")))?;
    let output = child.stdout.take().ok_or_else(|| failed("has no output".into()))?;
    let (tell, told) = mpsc::channel();
    // Not waited for: a child of the program may keep the pipe open for ever.
    let reader = std::thread::Builder::new().name("fuelrail-process".into()).spawn(move || {
        let mut text = Zeroizing::new(Vec::new());
        let read = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
        let _ = tell.send(read.map(|_| text));
    });
    reader.map_err(|e| failed(format!("cannot be read: {e}")))?;
    let Ok(read) = told.recv_timeout(PATIENCE) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(format!("printed nothing for {} s", PATIENCE.as_secs())));
    };
    let text = read.map_err(|e| failed(format!("cannot be read: {e}")))?;
    let status = child.wait().map_err(|e| failed(format!("cannot be waited for: {e}")))?;
    if !status.success() {
        return Err(failed(format!("ended with {status}")));
    }
    let credential = parse_keys(&text).map_err(|e| failed(format!("printed no credentials: {}", e.cause())))?;
    if credential.expires().is_some_and(|until| until <= now) {
        return Err(Error::new(Kind::Expired, "credential_process printed credentials that have expired")
            .with_hint("sign in again where the profile's command takes them from, or set this machine's clock"));
    }
    Ok(credential)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "# a comment\n[default]\nregion = eu-north-1 # here\ns3 =\n  max_concurrent_requests = 20\n\
        [profile work]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = default\n[profile loop]\nrole_arn = a\n\
        source_profile = pool\n[profile pool]\nrole_arn = b\nsource_profile = loop\n[profile lone]\nrole_arn = c\n\
        [profile login]\nsso_session = s\n[profile half]\naws_access_key_id = marked\n[profile bare]\nregion = x\n\
        [sso-session s]\nsso_region = y\n";
    const KEYS: &str =
        "[default]\naws_access_key_id = AK\naws_secret_access_key = marked/+=\n\n[work]\n; another\nregion=z\n";

    fn profiles() -> Profiles {
        let mut profiles = Profiles::default();
        profiles.add(CONFIG, true).unwrap();
        profiles.add(KEYS, false).unwrap();
        profiles
    }

    fn credential(name: &str, named: bool) -> Result<Source> {
        let environment = Environment::given([]);
        let service = Sts { environment: &environment, region: "us-east-1", now: WallTime(1) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(profiles().credential(name, named, &service))
    }

    #[test]
    fn both_files_are_one() {
        let profiles = profiles();
        let get = |name, setting| profiles.get(name, setting);
        assert_eq!((get("default", "region"), get("work", "region")), (Some("eu-north-1"), Some("z")));
        assert_eq!((get("default", "max_concurrent_requests"), get("s", "sso_region")), (None, None));
        assert_eq!(get("work", "source_profile"), Some("default"));
        let Ok(Ok(fetched)) = credential("default", false) else { panic!("it has keys") };
        assert_eq!(fetched.credential, Credential::aws("AK", "marked/+=", None).unwrap());
        // As AWS's own tools take them: indented, and from an editor that begins a file with a mark.
        let mut indented = Profiles::default();
        indented
            .add("\u{feff}[a]\n  region = x\n  s3 =\n    region = y\n  output = z\n[b]\nregion = v\n", false)
            .unwrap();
        let found = ["region", "s3", "output"].map(|setting| indented.get("a", setting));
        assert_eq!((found, indented.get("b", "region")), ([Some("x"), None, Some("z")], Some("v")));
        let error = Profiles::default().add("[a]\nmarked\n", false).unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("marked"), "{error}");
    }

    #[test]
    fn profiles_that_do_not_work_are_named_with_the_reason() {
        for (name, said) in [
            ("absent", "no profile 'absent'"),
            ("loop", "has no keys"),
            ("lone", "no source of credentials"),
            ("login", "export-credentials --profile login"),
            ("half", "without aws_secret_access_key"),
            ("bare", "no keys, role or process"),
        ] {
            let error = credential(name, true).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("marked"), "{name}: {error}");
        }
        for name in ["absent", "bare"] {
            assert!(matches!(credential(name, false), Ok(Err(_))), "{name}");
        }
    }

    #[test]
    fn a_program_hands_keys_out() {
        let run = |command: &str| from_program(command, WallTime(1_000_000_000));
        let keys = r#"echo '{"Version":1,"AccessKeyId":"AK","SecretAccessKey":"marked"}'"#;
        assert_eq!(run(keys).unwrap(), Credential::aws("AK", "marked", None).unwrap());
        let dated = |date: &str| keys.replace("\"AK\"", &format!("\"AK\",\"Expiration\":\"{date}\""));
        assert!(run(&dated("2001-09-09T01:46:41Z")).unwrap().expires().is_some());
        let old = dated("2001-09-09T01:46:40Z");
        for (command, said) in [
            ("echo marked; exit 3", "ended with"),
            ("echo marked", "printed no credentials"),
            (&old, "printed credentials that have expired"),
        ] {
            let error = run(command).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("marked"), "{error}");
        }
    }
}
