//! A container engine that only pretends: as much of the Engine API as copal asks for, over a Unix socket, in files below a
//! folder, with failures as ordered.
//!
//! Everything it keeps is below `root`/stub and `root`/volumes, one file for each image and container, so that it can be
//! killed and started again at any time. `examples/stub_engine.rs` makes a program of it.
#![allow(unreachable_pub, dead_code)]

#[path = "stub_engine/http.rs"]
mod http;

use std::collections::HashMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use http::Upload;
use http::{Answer, Body, Request, call_of, read_body, read_request, send};

/// What the engine is to do.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// The data root: `<slot>/balena`.
    pub root: PathBuf,
    /// The same folder, as those who ask see it; `root` if empty.
    pub seen: PathBuf,
    /// The API version it names; 1.41 if empty.
    pub api: String,
    /// What is in the volume /boot of each container, a folder; nothing if empty.
    pub boot: PathBuf,
    /// What runs when a container is started, with the container's environment added; `true` if empty.
    pub hooks: Vec<String>,
    /// The name of the image that an archive holds; `hostapp:latest` if empty.
    pub archive: String,
    /// Where it does something else than it should; the first one that fits and is not used up.
    pub faults: Vec<Fault>,
}

/// One deviation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fault {
    /// The call: `ping version info containers remove-container images remove-image load pull distribution image create inspect
    /// attach start wait`.
    pub call: String,
    /// How often; 0 is always.
    pub times: u32,
    pub kind: Kind,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Kind {
    /// This status, with this message.
    Status(u16, String),
    /// Status 200 and a body of these pieces, each in a chunk of its own.
    Says(Vec<String>, Then),
    /// It is done, and answers with status 200 and these lines, each when its time has come: a recording, as in `engine_streams`.
    Recorded(String),
    /// The connection is closed before there is any answer, nothing is done.
    Close,
    /// No answer, ever; nothing is done.
    Hang,
    /// It is done, but the connection is closed without an answer.
    Lost,
    /// The engine ends with its process before it does anything.
    Die,
    /// It is done, after so many milliseconds.
    Late(u64),
}

/// What follows a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// Its proper end.
    End,
    /// The connection is closed.
    Cut,
    /// Nothing, for ever.
    Hang,
}

impl Script {
    pub fn new(root: impl Into<PathBuf>) -> Script {
        Script { root: root.into(), ..Script::default() }
    }

    /// Adds a deviation of one call, `times` times (0: always).
    #[must_use]
    pub fn fault(mut self, call: &str, times: u32, kind: Kind) -> Script {
        self.faults.push(Fault { call: call.to_owned(), times, kind });
        self
    }
}

/// A running one; its socket is removed in the end.
pub struct Stub {
    pub socket: PathBuf,
    engine: Arc<Engine>,
}

impl Stub {
    /// Listens at `socket`. Threads answer until the process ends.
    pub fn start(socket: &Path, script: Script) -> Stub {
        let engine = Engine::new(script);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _old = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let serving = Arc::clone(&engine);
        thread::spawn(move || serve(&serving, &listener));
        Stub { socket: socket.to_owned(), engine }
    }

    /// The calls so far, as named in [`Fault::call`], without `ping`, `version` and `info`.
    pub fn calls(&self) -> Vec<String> {
        calls(&self.engine.script.root)
    }

    /// The request bodies of all `create` so far.
    pub fn created(&self) -> Vec<Value> {
        self.engine.created.lock().unwrap().clone()
    }

    /// How many of the calls that it lets hang were given up by those who had made them.
    pub fn given_up(&self) -> usize {
        *self.engine.given_up.lock().unwrap()
    }

    /// The `x-registry-auth` headers of all pulls, and of all questions before them, so far.
    pub fn secrets(&self) -> Vec<Option<String>> {
        self.engine.secrets.lock().unwrap().clone()
    }

    /// The archives that were loaded so far.
    pub fn uploads(&self) -> Vec<Upload> {
        self.engine.uploads.lock().unwrap().clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.socket);
    }
}

/// The calls that an engine with this data root has had, in whichever process.
pub fn calls(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("stub/calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Listens at `socket` for ever. It is there when it can be connected to, which takes a moment from the binding.
pub fn run(socket: &Path, script: Script) {
    let engine = Engine::new(script);
    let new = socket.with_extension("new");
    let _old = fs::remove_file(&new);
    let listener = UnixListener::bind(&new).unwrap();
    fs::rename(&new, socket).unwrap();
    serve(&engine, &listener);
}

struct Engine {
    script: Script,
    used: Mutex<HashMap<usize, u32>>,
    attached: Mutex<HashMap<String, UnixStream>>,
    ended: Mutex<HashMap<String, i64>>,
    somebody_ended: Condvar,
    created: Mutex<Vec<Value>>,
    secrets: Mutex<Vec<Option<String>>>,
    uploads: Mutex<Vec<Upload>>,
    given_up: Mutex<usize>,
}

fn serve(engine: &Arc<Engine>, listener: &UnixListener) {
    for stream in listener.incoming() {
        let engine = Arc::clone(engine);
        let Ok(stream) = stream else { continue };
        thread::spawn(move || {
            let _broken = engine.answer(stream);
        });
    }
}

impl Engine {
    fn new(script: Script) -> Arc<Engine> {
        for folder in ["stub/images", "stub/containers", "volumes", "tmp"] {
            fs::create_dir_all(script.root.join(folder)).unwrap();
        }
        Arc::new(Engine {
            script,
            used: Mutex::default(),
            attached: Mutex::default(),
            ended: Mutex::default(),
            somebody_ended: Condvar::new(),
            created: Mutex::default(),
            secrets: Mutex::default(),
            uploads: Mutex::default(),
            given_up: Mutex::default(),
        })
    }

    fn answer(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        let Some(request) = read_request(&mut reader)? else { return Ok(()) };
        let (call, id) = call_of(&request);
        if !matches!(call, "ping" | "version" | "info") {
            let mut log =
                fs::OpenOptions::new().create(true).append(true).open(self.script.root.join("stub/calls"))?;
            writeln!(log, "{call}")?;
        }
        let kind = self.fault(call);
        match &kind {
            Some(Kind::Close) => return Ok(()),
            Some(Kind::Hang) => return self.hang(&mut reader),
            Some(Kind::Die) => std::process::abort(),
            Some(Kind::Late(time)) => thread::sleep(Duration::from_millis(*time)),
            _ => {}
        }
        let body = read_body(&request, &mut reader, call == "load")?;
        let answer = match kind {
            Some(Kind::Status(code, message)) => Answer::Json(code, json!({ "message": message })),
            Some(Kind::Says(pieces, then)) => {
                send(&mut stream, Answer::Says(pieces, then))?;
                return if then == Then::Hang { self.hang(&mut reader) } else { Ok(()) };
            }
            Some(Kind::Recorded(text)) => {
                self.perform(call, &id, &request, body, &stream)?;
                Answer::Recorded(text)
            }
            Some(Kind::Lost) => {
                self.perform(call, &id, &request, body, &stream)?;
                Answer::Nothing
            }
            _ => self.perform(call, &id, &request, body, &stream)?,
        };
        send(&mut stream, answer)
    }

    /// Until the other side closes the connection.
    fn hang(&self, reader: &mut impl Read) -> std::io::Result<()> {
        let ended = std::io::copy(reader, &mut std::io::sink());
        *self.given_up.lock().unwrap() += 1;
        ended.map(drop)
    }

    fn fault(&self, call: &str) -> Option<Kind> {
        let mut used = self.used.lock().unwrap();
        for (i, fault) in self.script.faults.iter().enumerate().filter(|(_, f)| f.call == call) {
            let count = used.entry(i).or_default();
            if fault.times == 0 || *count < fault.times {
                *count += 1;
                return Some(fault.kind.clone());
            }
        }
        None
    }

    fn perform(
        &self,
        call: &str,
        id: &str,
        request: &Request,
        body: Body,
        stream: &UnixStream,
    ) -> std::io::Result<Answer> {
        let root = &self.script.root;
        let (images, containers) = (root.join("stub/images"), root.join("stub/containers"));
        let missing = |what: &str| Answer::Json(404, json!({ "message": format!("No such {what}: {id}") }));
        Ok(match call {
            "ping" => Answer::Text("OK".to_owned()),
            "version" => {
                let api = if self.script.api.is_empty() { "1.41" } else { &self.script.api };
                Answer::Json(200, json!({ "ApiVersion": api, "Version": "stub" }))
            }
            "info" => Answer::Json(200, json!({ "DockerRootDir": self.seen() })),
            // Without `all`: those that run, and what it starts has ended before anybody can ask.
            "containers" if !matches!(request.asks("all").as_str(), "1" | "true") => {
                Answer::Json(200, json!([]))
            }
            "containers" => Answer::Json(200, list(&containers, |id, _| json!({ "Id": id }))),
            "images" => Answer::Json(
                200,
                list(&images, |_, image| {
                    json!({ "Id": image["Id"], "ParentId": "", "RepoTags": [image["name"]], "RepoDigests": [], "Created": 0,
                            "Size": 1, "SharedSize": -1, "Labels": {}, "Containers": -1 })
                }),
            ),
            "remove-container" => match read_json(&containers.join(id)) {
                Some(container) => {
                    for volume in container["volumes"].as_array().into_iter().flatten() {
                        fs::remove_dir_all(root.join("volumes").join(volume.as_str().unwrap()))?;
                    }
                    fs::remove_file(containers.join(id))?;
                    Answer::Json(204, Value::Null)
                }
                None => missing("container"),
            },
            "remove-image" => match self.image(id) {
                Some((file, _)) => {
                    fs::remove_file(file)?;
                    Answer::Json(200, json!([]))
                }
                None => missing("image"),
            },
            "load" => {
                if let Body::Archive(upload) = body {
                    self.uploads.lock().unwrap().push(upload);
                }
                let name =
                    if self.script.archive.is_empty() { "hostapp:latest" } else { &self.script.archive };
                self.keep_image(name)?;
                let layer = |current| json!({ "status": "Loading layer", "id": "1", "progressDetail": { "current": current, "total": 2 } });
                let said = [layer(1), layer(2), json!({ "stream": format!("Loaded image: {name}\n") })];
                Answer::Says(said.iter().map(|v| format!("{v}\r\n")).collect(), Then::End)
            }
            "pull" => {
                self.secrets.lock().unwrap().push(request.headers.get("x-registry-auth").cloned());
                let (repository, tag) = (request.asks("fromImage"), request.asks("tag"));
                let sign = if tag.contains(':') { '@' } else { ':' };
                let name = format!("{repository}{sign}{tag}");
                self.keep_image(&name)?;
                let layer = |status: &str, current| json!({ "status": status, "id": "1", "progressDetail": { "current": current, "total": 2 } });
                let said = [
                    json!({ "status": format!("Pulling from {repository}"), "id": tag }),
                    layer("Downloading", 1),
                    layer("Downloading", 2),
                    layer("Extracting", 2),
                    json!({ "status": format!("Status: Downloaded newer image for {name}") }),
                ];
                Answer::Says(said.iter().map(|v| format!("{v}\r\n")).collect(), Then::End)
            }
            "distribution" => {
                self.secrets.lock().unwrap().push(request.headers.get("x-registry-auth").cloned());
                let text = include_str!("engine_streams/distribution.txt");
                Answer::Json(200, serde_json::from_str(text.split_once(' ').unwrap().1)?)
            }
            "image" => match self.image(id) {
                Some((_, image)) => Answer::Json(200, json!({ "Id": image["Id"], "Size": 1 })),
                None => missing("image"),
            },
            "create" => {
                let Body::Text(text) = body else { return Ok(Answer::Nothing) };
                let wish: Value = serde_json::from_slice(&text)?;
                let image = wish["Image"].as_str().unwrap_or_default();
                let Some((_, image)) = self.image(image) else {
                    return Ok(Answer::Json(404, json!({ "message": format!("No such image: {image}") })));
                };
                let mut volumes = Vec::new();
                let mut mounts = Vec::new();
                for point in wish["Volumes"].as_object().into_iter().flat_map(|v| v.keys()) {
                    let name = hex();
                    let data = root.join("volumes").join(&name).join("_data");
                    fs::create_dir_all(&data)?;
                    if !self.script.boot.as_os_str().is_empty() {
                        copy(&self.script.boot, &data)?;
                    }
                    let data = self.seen().join(data.strip_prefix(root).unwrap());
                    mounts.push(json!({ "Type": "volume", "Name": name, "Source": data, "Destination": point, "RW": true }));
                    volumes.push(name);
                }
                let id = hex();
                write_json(
                    &containers.join(&id),
                    &json!({ "wish": wish, "image": image["Id"], "volumes": volumes, "mounts": mounts }),
                )?;
                self.created.lock().unwrap().push(wish);
                Answer::Json(201, json!({ "Id": id, "Warnings": [] }))
            }
            "inspect" => match read_json(&containers.join(id)) {
                Some(container) => Answer::Json(
                    200,
                    json!({ "Id": id, "Image": container["image"], "Mounts": container["mounts"] }),
                ),
                None => missing("container"),
            },
            "attach" => {
                let mut stream = stream.try_clone()?;
                // Whoever has the answer starts the container, whose output must find its way by then.
                let mut attached = self.attached.lock().unwrap();
                stream.write_all(
                    b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
                )?;
                attached.insert(id.to_owned(), stream);
                Answer::Nothing
            }
            "start" => match read_json(&containers.join(id)) {
                Some(container) => {
                    // The answer comes first: what is started may end this engine.
                    send(&mut stream.try_clone()?, Answer::Json(204, Value::Null))?;
                    self.execute(id, &container["wish"]);
                    Answer::Nothing
                }
                None => missing("container"),
            },
            "wait" => {
                let mut ended = self.ended.lock().unwrap();
                while !ended.contains_key(id) {
                    ended = self.somebody_ended.wait(ended).unwrap();
                }
                Answer::Says(vec![json!({ "StatusCode": ended[id] }).to_string()], Then::End)
            }
            _ => Answer::Json(404, json!({ "message": "page not found" })),
        })
    }

    /// Runs the hooks to their end, standard output and standard error framed as one.
    fn execute(&self, id: &str, wish: &Value) {
        let mut attached = self.attached.lock().unwrap().remove(id);
        let words =
            if self.script.hooks.is_empty() { vec!["true".to_owned()] } else { self.script.hooks.clone() };
        let environment =
            wish["Env"].as_array().into_iter().flatten().filter_map(|v| v.as_str()?.split_once('='));
        let (mut output, both) = std::io::pipe().unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(environment).stdin(Stdio::null());
        command.stdout(both.try_clone().unwrap()).stderr(both);
        let status = match command.spawn() {
            Ok(mut child) => {
                drop(command);
                let mut piece = [0; 4096];
                while let Ok(n @ 1..) = output.read(&mut piece) {
                    if let Some(attached) = &mut attached {
                        let head =
                            [&[1, 0, 0, 0], u32::try_from(n).unwrap().to_be_bytes().as_slice()].concat();
                        let _left = attached.write_all(&head).and_then(|()| attached.write_all(&piece[..n]));
                    }
                }
                child.wait().ok().and_then(|s| s.code()).map_or(137, i64::from)
            }
            Err(_) => 127,
        };
        drop(attached);
        self.ended.lock().unwrap().insert(id.to_owned(), status);
        self.somebody_ended.notify_all();
    }

    fn seen(&self) -> &Path {
        if self.script.seen.as_os_str().is_empty() { &self.script.root } else { &self.script.seen }
    }

    /// Adds an image of this name; the same name is the same image.
    fn keep_image(&self, name: &str) -> std::io::Result<()> {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let id = format!("{hash:016x}").repeat(4);
        let image = json!({ "Id": format!("sha256:{id}"), "name": name });
        write_json(&self.script.root.join("stub/images").join(id), &image)
    }

    /// The image of this ID or name.
    fn image(&self, name: &str) -> Option<(PathBuf, Value)> {
        let files = fs::read_dir(self.script.root.join("stub/images")).ok()?;
        let mut all = files.filter_map(|f| Some((f.as_ref().ok()?.path(), read_json(&f.ok()?.path())?)));
        let tagged = if name.contains(['@']) || name.rsplit('/').next().unwrap().contains(':') {
            name.to_owned()
        } else {
            format!("{name}:latest")
        };
        all.find(|(_, image)| image["Id"] == name || image["name"] == tagged)
    }
}

fn list(folder: &Path, entry: impl Fn(&str, &Value) -> Value) -> Value {
    let mut all: Vec<Value> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|f| {
            let path = f.ok()?.path();
            Some(entry(path.file_name()?.to_str()?, &read_json(&path)?))
        })
        .collect();
    all.sort_by_key(Value::to_string);
    Value::Array(all)
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json(path: &Path, value: &Value) -> std::io::Result<()> {
    let new = path.with_file_name(format!(".{}", hex()));
    fs::write(&new, value.to_string())?;
    fs::rename(new, path)
}

fn hex() -> String {
    (0..4).map(|_| format!("{:016x}", fastrand::u64(..))).collect()
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
