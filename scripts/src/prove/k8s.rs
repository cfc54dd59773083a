//! The operator's manifests as others read them: built by `kubectl kustomize`, checked against the OpenAPI schemas that Kubernetes publishes
//! (the package kubernetes-validate has them, with unknown fields refused), and examples of a `Dataset` against the definition in the tree.

use super::session::{Finding, Session};
use crate::steps::run;
use std::process::Command;

pub(super) fn prove(session: &Session<'_>) -> Finding {
    let (place, deploy) = (session.target("k8s")?, session.root.join("bindings/k8s/deploy"));
    let mut kubectl = Command::new("kubectl");
    let built = kubectl.arg("kustomize").arg(&deploy).output();
    let built = built.map_err(|e| format!("kubectl: {e} (Debian's package kubernetes-client)"))?;
    if !built.status.success() {
        return Err(format!("kubectl kustomize: {}", String::from_utf8_lossy(&built.stderr)));
    }
    if !place.join("bin/python").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    }
    let python = || Command::new(place.join("bin/python"));
    run(python().args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "kubernetes-validate"]))?;
    let whole = place.join("built.yaml");
    std::fs::write(&whole, built.stdout).map_err(|e| format!("{}: {e}", whole.display()))?;
    let mut check = python();
    check.arg(session.root.join("scripts/src/prove/k8s.py")).arg(&whole).arg(deploy);
    let output = check.output().map_err(|e| format!("python: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok((true, serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?))
}
