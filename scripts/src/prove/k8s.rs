//! The operator's manifests, built by `kubectl kustomize` and validated against the OpenAPI schemas that Kubernetes publishes (from the
//! package kubernetes-validate; unknown fields are errors), and the example `Dataset` against the definition in the tree.

use super::session::{Finding, Session};
use crate::steps::{printed, say};
use serde_json::json;
use std::process::Command;

pub(super) fn prove(session: &Session<'_>) -> Finding {
    let deploy = session.root.join("bindings/k8s/deploy");
    let mut kubectl = Command::new("kubectl");
    let built = kubectl.arg("kustomize").arg(&deploy).output();
    let built = built.map_err(|e| format!("kubectl: {e} (Debian's package kubernetes-client)"))?;
    if !built.status.success() {
        say(&format!("kubectl kustomize: {}", String::from_utf8_lossy(&built.stderr)));
        return Ok((false, json!({})));
    }
    let python = session.python("k8s", &["kubernetes-validate"])?;
    let whole = session.target("k8s/built.yaml")?;
    std::fs::write(&whole, built.stdout).map_err(|e| format!("{}: {e}", whole.display()))?;
    let script = session.root.join("scripts/src/prove/k8s.py");
    let validated = printed(Command::new(python).arg(script).arg(&whole).arg(deploy));
    let Ok(counts) = validated.inspect_err(|why| say(why)) else {
        return Ok((false, json!({})));
    };
    Ok((true, serde_json::from_str(&counts).map_err(|e| e.to_string())?))
}
