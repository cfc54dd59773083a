//! A fake API server over real sockets, with the requests that the operator makes: lists, watches with bookmarks that break off or have
//! expired (410), creation, merge patches and server-side apply under resource versions (409), the status subresource, finalizers,
//! foreground deletion, and the rules for pods with a gate. It has no schemas, no admission and no field ownership, and it follows the
//! published API conventions, not recorded traffic of a real server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::watch;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Effect of an injected fault on a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Refused as if its resource version were stale.
    Conflict,
    /// Applied, but the response reports a failure.
    AnswerLost,
    /// Not applied.
    Refused,
}

#[derive(Default)]
struct State {
    version: u64,
    /// By collection (`/apis/batch/v1/jobs`), then by namespace and name.
    objects: BTreeMap<(String, String), Value>,
    /// Version, collection, event.
    events: Vec<(u64, String, Value)>,
    /// A watch from before this version gets 410.
    oldest: u64,
    /// How often the watches were broken off. A watch ends when this has grown since its start.
    broken: u64,
    faults: Vec<Fault>,
    log: Vec<String>,
}

/// The fake server; clones share its state.
#[derive(Clone)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
    pub(crate) address: SocketAddr,
}

/// A request's target: `/apis/GROUP/VERSION[/namespaces/NS]/PLURAL[/NAME[/SUB]]`.
struct Target {
    collection: String,
    namespace: Option<String>,
    name: Option<String>,
    sub: Option<String>,
}

impl Target {
    fn of(path: &str) -> Target {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (head, mut rest) = parts.split_at(if parts[0] == "api" { 2 } else { 3 });
        let mut namespace = None;
        if rest[0] == "namespaces" && rest.len() > 2 {
            namespace = Some(rest[1].to_owned());
            rest = &rest[2..];
        }
        let at = |n: usize| rest.get(n).map(|part| (*part).to_owned());
        Target { collection: format!("/{}/{}", head.join("/"), rest[0]), namespace, name: at(1), sub: at(2) }
    }

    fn key(&self) -> (String, String) {
        let name = self.name.clone().unwrap_or_default();
        (self.collection.clone(), format!("{}/{name}", self.namespace.clone().unwrap_or_default()))
    }
}

impl Api {
    /// Starts on a thread of its own, for as long as the test runs.
    pub(crate) fn start() -> Api {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { version: 100, ..State::default() };
        let api = Api { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(()), address };
        let server = api.clone();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let api = server.clone();
                let answer = service_fn(move |request| {
                    let api = api.clone();
                    async move { Ok::<_, Infallible>(api.answer(request).await) }
                });
                tokio::spawn(async move {
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(serve));
        api
    }

    // Direct access for tests: all rights, no faults.

    pub(crate) fn put(&self, path: &str, object: Value) -> Value {
        let target = Target::of(path);
        let mut state = self.state.lock().unwrap();
        let stored = state.store(&target, object);
        self.changed.send_replace(());
        stored
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(&Target::of(path).key()).cloned()
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().unwrap().remove(&Target::of(path).key());
        self.changed.send_replace(());
    }

    pub(crate) fn list(&self, collection: &str) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        state.objects.iter().filter(|((of, _), _)| of == collection).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn fault(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    /// Breaks off all watches; with `expired`, a watch that resumes from an old version gets 410.
    pub(crate) fn break_watches(&self, expired: bool) {
        let mut state = self.state.lock().unwrap();
        state.broken += 1;
        if expired {
            state.version += 1;
            state.oldest = state.version;
        }
        self.changed.send_replace(());
    }

    /// Writes so far: `PATCH /apis/… application/merge-patch+json BODY`.
    pub(crate) fn log(&self) -> Vec<String> {
        self.state.lock().unwrap().log.clone()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let query: BTreeMap<String, String> =
            parts.uri.query().unwrap_or_default().split('&').filter_map(pair).collect();
        let target = Target::of(parts.uri.path());
        if parts.method == Method::GET {
            return match query.get("watch") {
                Some(_) => self.watch(target, &query),
                None => self.read(&target, &query),
            };
        }
        let kind = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        state.log.push(format!("{} {} {kind} {body}", parts.method, parts.uri.path()));
        // Faults hit only what the reconciler writes, not leases and events.
        let spared = target.collection.ends_with("leases") || target.collection.ends_with("events");
        let fault = if spared || state.faults.is_empty() { None } else { Some(state.faults.remove(0)) };
        match fault {
            Some(Fault::Conflict) => return refuse(409, "Conflict", "the object has been modified"),
            Some(Fault::Refused) => return refuse(500, "InternalError", "etcdserver: request timed out"),
            _ => {}
        }
        let done = match parts.method {
            Method::POST => state.create(&target, body),
            Method::PATCH => state.patch(&target, body, kind, &query),
            Method::DELETE => state.delete(&target, &body),
            _ => Err((405, "MethodNotAllowed", "method not supported".to_owned())),
        };
        drop(state);
        self.changed.send_replace(());
        match done {
            _ if fault == Some(Fault::AnswerLost) => refuse(500, "InternalError", "the answer was lost"),
            Ok(object) => document(200, &object),
            Err((code, reason, message)) => refuse(code, reason, &message),
        }
    }

    fn read(&self, target: &Target, query: &BTreeMap<String, String>) -> Response<Body> {
        let state = self.state.lock().unwrap();
        if target.name.is_some() {
            return match state.objects.get(&target.key()) {
                Some(object) => document(200, object),
                None => refuse(404, "NotFound", "not found"),
            };
        }
        // As Kubernetes: labels, and selectors with them, take values of 63 characters.
        let selector = query.get("labelSelector").map(String::as_str).unwrap_or_default();
        if selector.split(',').filter_map(|term| term.split_once('=')).any(|(_, value)| value.len() > 63) {
            return refuse(400, "BadRequest", "unable to parse requirement: must be no more than 63 characters");
        }
        let prefix = target.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let here = state.objects.iter().filter(|((of, key), _)| *of == target.collection && key.starts_with(&prefix));
        let items: Vec<&Value> = here.map(|(_, object)| object).filter(|object| selected(object, query)).collect();
        let version = json!({ "resourceVersion": state.version.to_string() });
        document(200, &json!({ "kind": "List", "apiVersion": "v1", "metadata": version, "items": items }))
    }

    fn watch(&self, target: Target, query: &BTreeMap<String, String>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let begun = self.state.lock().unwrap().broken;
        let bookmarks = query.get("allowWatchBookmarks").is_some_and(|value| value == "true");
        let (api, changes, query) = (self.clone(), self.changed.subscribe(), query.clone());
        let lines = stream::unfold((from, changes, false), move |(from, mut changes, over)| {
            let (api, query, collection) = (api.clone(), query.clone(), target.collection.clone());
            async move {
                if over {
                    return None;
                }
                loop {
                    let (lines, from, over) = api.news(&collection, &query, from, begun)?;
                    if !lines.is_empty() {
                        return Some((frame(lines), (from, changes, over)));
                    }
                    let waited = tokio::time::timeout(Duration::from_millis(500), changes.changed()).await;
                    if waited.is_err() && bookmarks {
                        let version = api.state.lock().unwrap().version;
                        let meta = json!({ "metadata": { "resourceVersion": version.to_string() } });
                        let line =
                            format!("{}\n", json!({ "type": "BOOKMARK", "object": with_kind(&collection, meta) }));
                        return Some((frame(line), (from.max(version), changes, false)));
                    }
                }
            }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    /// Events since `from`, the version they end at, and whether the watch ends with them; none if it was broken off.
    fn news(&self, of: &str, query: &BTreeMap<String, String>, from: u64, begun: u64) -> Option<(String, u64, bool)> {
        let state = self.state.lock().unwrap();
        if state.broken > begun {
            return None;
        }
        if from < state.oldest {
            let gone = json!({ "type": "ERROR", "object": status(410, "Expired", "too old resource version") });
            return Some((format!("{gone}\n"), from, true));
        }
        let new = state.events.iter().filter(|(version, collection, event)| {
            *version > from && collection == of && selected(&event["object"], query)
        });
        let lines: String = new.map(|(.., event)| format!("{event}\n")).collect();
        Some((lines, state.version.max(from), false))
    }
}

type Done = Result<Value, (u16, &'static str, String)>;

impl State {
    fn store(&mut self, target: &Target, mut object: Value) -> Value {
        self.version += 1;
        let key = target.key();
        let before = self.objects.get(&key);
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        let uid = before.map_or_else(|| json!(format!("uid-{}", self.version)), |old| old["metadata"]["uid"].clone());
        let generation = before.map_or(0, |old| old["metadata"]["generation"].as_i64().unwrap_or(0));
        let edited = before.is_none_or(|old| old["spec"] != object["spec"]);
        object = with_kind(&target.collection, object);
        let meta = &mut object["metadata"];
        (meta["uid"], meta["name"]) = (uid, json!(target.name));
        meta["generation"] = json!(generation + i64::from(edited));
        meta["resourceVersion"] = json!(self.version.to_string());
        if let Some(namespace) = &target.namespace {
            meta["namespace"] = json!(namespace);
        }
        self.events.push((self.version, key.0.clone(), json!({ "type": kind, "object": object })));
        self.objects.insert(key, object.clone());
        object
    }

    fn remove(&mut self, key: &(String, String)) {
        if let Some(mut object) = self.objects.remove(key) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.events.push((self.version, key.0.clone(), json!({ "type": "DELETED", "object": object })));
        }
    }

    fn create(&mut self, target: &Target, object: Value) -> Done {
        let name = object["metadata"]["name"].as_str().map(str::to_owned);
        let named =
            Target { name, collection: target.collection.clone(), namespace: target.namespace.clone(), sub: None };
        if self.objects.contains_key(&named.key()) {
            return Err((409, "AlreadyExists", "it exists".to_owned()));
        }
        Ok(self.store(&named, object))
    }

    fn patch(&mut self, target: &Target, patch: Value, kind: &str, query: &BTreeMap<String, String>) -> Done {
        let applies = kind == "application/apply-patch+yaml";
        if applies && !query.contains_key("fieldManager") {
            return Err((400, "BadRequest", "fieldManager is required for apply patch".to_owned()));
        }
        let Some(old) = self.objects.get(&target.key()).cloned() else {
            return Err((404, "NotFound", "not found".to_owned()));
        };
        let seen = &patch["metadata"]["resourceVersion"];
        if !seen.is_null() && *seen != old["metadata"]["resourceVersion"] {
            return Err((409, "Conflict", "the object has been modified".to_owned()));
        }
        let mut new = old.clone();
        match target.sub.as_deref() {
            // The operator owns all fields of the status: those that an apply leaves out are removed.
            Some("status") if applies => new["status"] = patch["status"].clone(),
            Some("status") => merge(&mut new["status"], &patch["status"]),
            _ => {
                merge(&mut new, &patch);
                new["status"].clone_from(&old["status"]);
            }
        }
        if target.collection == "/api/v1/pods" {
            gated_pod(&old["spec"], &new["spec"])?;
        }
        if new == old {
            return Ok(old);
        }
        let stored = self.store(target, new);
        let meta = &stored["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !meta["deletionTimestamp"].is_null() && !held {
            self.remove(&target.key());
        }
        Ok(stored)
    }

    fn delete(&mut self, target: &Target, options: &Value) -> Done {
        let Some(mut object) = self.objects.get(&target.key()).cloned() else {
            return Err((404, "NotFound", "not found".to_owned()));
        };
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return Err((409, "Conflict", "the uid in the precondition is another".to_owned()));
        }
        if options["propagationPolicy"] == "Foreground" {
            object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
        }
        if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.remove(&target.key());
            return Ok(object);
        }
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        Ok(self.store(target, object))
    }
}

/// Kubernetes' validation of pods with gates: gates can only be removed, and affinity can change only while there is one.
fn gated_pod(old: &Value, new: &Value) -> Result<(), (u16, &'static str, String)> {
    let gates = |spec: &Value| spec["schedulingGates"].as_array().cloned().unwrap_or_default();
    let added = gates(new).iter().any(|gate| !gates(old).contains(gate));
    if added || (gates(old).is_empty() && old["affinity"] != new["affinity"]) {
        return Err((422, "Invalid", "spec: Forbidden: pod updates may not change fields other than …".to_owned()));
    }
    Ok(())
}

/// JSON merge patch, RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name.as_str()], value);
        }
    }
}

fn with_kind(collection: &str, mut object: Value) -> Value {
    let (group, plural) = collection.rsplit_once('/').unwrap();
    let kind = match plural {
        "datasets" => "Dataset",
        "jobs" => "Job",
        "pods" => "Pod",
        "nodes" => "Node",
        "leases" => "Lease",
        _ => "Event",
    };
    object["apiVersion"] = json!(group.trim_start_matches("/apis/").trim_start_matches("/api/"));
    object["kind"] = json!(kind);
    object
}

fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let selector = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let labels = &object["metadata"]["labels"];
    selector.split(',').filter_map(|term| term.split_once('=')).all(|(key, value)| labels[key] == value)
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let value = value.replace("%3D", "=").replace("%2F", "/").replace("%2C", ",");
    Some((key.to_owned(), value))
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message })
}

fn refuse(code: u16, reason: &str, message: &str) -> Response<Body> {
    document(code, &status(code, reason, message))
}

fn document(code: u16, document: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(document.to_string())).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

type Line = Result<Frame<Bytes>, Infallible>;

fn frame(text: String) -> Line {
    Ok(Frame::data(Bytes::from(text)))
}
