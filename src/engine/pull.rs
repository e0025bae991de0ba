use std::collections::BTreeSet;

use bollard::BollardRequest;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::Stream;

use super::failure::{Failure, Why};
use super::layers::Layers;
use super::{Engine, Image, Progress, Reference, watch};
use crate::engine::archive::MAX_LAYERS;
use crate::engine::credentials::{self, Credentials};
use crate::error::{Code, Result};
use crate::job::Stage;

impl Engine {
    /// Without tag and digest, the tag `latest`.
    pub fn pull(&self, reference: &str, progress: &mut dyn FnMut(&Progress)) -> Result<Image> {
        let what = format!("cannot pull the image {reference}");
        let name = Reference::parse(reference)?;
        let (credentials, trouble) = match self.credentials_for(&name) {
            Ok(found) => (found, None),
            Err(e) => {
                tracing::warn!("{e}; pulling the image without credentials");
                (None, Some(e))
            }
        };
        let mut layers = Layers::default();
        self.again(|| {
            self.long(self.pull_once(&name, credentials.as_ref(), &mut layers, progress)).map_err(
                |failure| {
                    let (code, passes) = judge(&failure);
                    let error = failure.coded(code, &what).object(reference);
                    let error = match &trouble {
                        Some(trouble) if code == Code::RegistryRefused => error.and_also(&trouble.message()),
                        _ => error,
                    };
                    (Box::new(error), passes)
                },
            )?;
            let image = self.image(&name.to_string()).map_err(|e| {
                let passes = e.code() == Code::EngineUnreachable;
                (Box::new(e.object(reference)), passes)
            })?;
            Ok(Image { reference: reference.to_owned(), ..image })
        })
    }

    pub(super) fn credentials_for(&self, name: &Reference) -> Result<Option<Credentials>> {
        match &self.credentials {
            Some(folder) => credentials::below(folder, name.registry()),
            None => credentials::find(name.registry()),
        }
    }

    pub(super) fn answers_to_pull(
        &self,
        name: &Reference,
        credentials: Option<&Credentials>,
    ) -> impl Stream<Item = Result<CreateImageInfo, bollard::errors::Error>> + Unpin {
        let options =
            CreateImageOptionsBuilder::new().from_image(name.repository()).tag(name.version()).build();
        Box::pin(self.docker.create_image(Some(options), None, credentials.map(Credentials::for_engine)))
    }

    async fn pull_once(
        &self,
        name: &Reference,
        credentials: Option<&Credentials>,
        layers: &mut Layers,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), Failure> {
        let mut answers = self.answers_to_pull(name, credentials);
        let mut done = false;
        let mut named = BTreeSet::new();
        loop {
            match watch::next(&self.docker, self.timeouts, Some(self.timeouts.stall), &mut answers, || false)
                .await
            {
                Ok(Some(answer)) => {
                    done |= says_done(&answer);
                    named.extend(layer_named(&answer).map(str::to_owned));
                    if named.len() > MAX_LAYERS {
                        let text = format!(
                            "its image has more than {MAX_LAYERS} layers, and the engine registers no more"
                        );
                        return Err(Failure { why: Why::Reported, text });
                    }
                    if let Some(p) = take(&answer, layers) {
                        progress(&p);
                    }
                }
                Ok(None) if done => return Ok(()),
                Ok(None) => {
                    return Err(Failure::garbled("the engine does not report that it has pulled the image"));
                }
                Err(e) if e.is_loose_end() && done => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

/// The last line of a successful pull (moby, distribution/pull.go).
fn says_done(answer: &CreateImageInfo) -> bool {
    let status = answer.status.as_deref().unwrap_or_default();
    status.starts_with("Status: ") && answer.error_detail.is_none()
}

/// The layer that a line announces, before it is fetched (moby, distribution/xfer/download.go).
fn layer_named(answer: &CreateImageInfo) -> Option<&str> {
    let is_announced = matches!(answer.status.as_deref(), Some("Pulling fs layer" | "Already exists"));
    answer.id.as_deref().filter(|_| is_announced)
}

/// Progress from a line about one layer (moby, distribution/xfer), or about all.
///
/// balenaEngine unpacks a layer while it arrives. It reports no downloads, and a layer's unpacking only while that layer is at it; the total
/// comes in objects without a status (its distribution/xfer/download.go).
fn take(answer: &CreateImageInfo, layers: &mut Layers) -> Option<Progress> {
    let id = answer.id.as_deref()?;
    let detail = answer.progress_detail.as_ref();
    match answer.status.as_deref().unwrap_or_default() {
        "" if id == "Total" => layers.update_whole(Stage::Pull, detail?),
        "Downloading" => layers.update(Stage::Pull, id, detail?),
        "Extracting" if layers.knows(Stage::Pull) => layers.update(Stage::Unpack, id, detail?),
        "Verifying Checksum" | "Download complete" => layers.complete(Stage::Pull, id),
        "Pull complete" => layers.complete(Stage::Unpack, id),
        _ => None,
    }
}

/// Error code, and whether to try again. The text is all that the engine reports.
pub(super) fn judge(failure: &Failure) -> (Code, bool) {
    const REFUSED: [&str; 8] = [
        "unauthorized",
        "authentication required",
        "no basic auth credentials",
        "denied",
        "incorrect username or password",
        "401 ",
        "403 ",
        "insufficient_scope",
    ];
    const UNKNOWN: [&str; 9] = [
        "manifest unknown",
        "manifest for ",
        "name unknown",
        "name invalid",
        "repository name not known",
        "no matching manifest",
        "invalid reference format",
        "no such image",
        "not found: does not exist",
    ];
    // Time does not help here.
    const HOPELESS: [&str; 4] = [
        "x509:",
        "server gave http response to https client",
        "unsupported protocol scheme",
        "proxy authentication required",
    ];
    const UNREACHABLE: [&str; 27] = [
        "dial tcp",
        "no such host",
        "server misbehaving",
        "temporary failure in name resolution",
        "connection refused",
        "connection reset",
        "connection timed out",
        "network is unreachable",
        "no route to host",
        "i/o timeout",
        "tls handshake",
        "unexpected eof",
        ": eof",
        "broken pipe",
        "request canceled",
        "context deadline exceeded",
        "context canceled",
        "closed network connection",
        "connection lost",
        "stream error",
        "goaway",
        "toomanyrequests",
        "too many requests",
        "unexpected http status",
        // Of any proxy on the way; Docker's newer store names the status alone.
        "bad gateway",
        "service unavailable",
        "gateway timeout",
    ];
    let text = failure.text.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|w| text.contains(w));
    // Any word may be in the page itself.
    if let (Why::Refused(_) | Why::Reported, Some(status)) = (failure.why.clone(), page(&text)) {
        return by_status(status);
    }
    match failure.why {
        Why::Lost | Why::Silent => (Code::EngineUnreachable, true),
        Why::Stalled => (Code::RegistryUnreachable, true),
        Why::Garbled => (Code::EngineFailed, false),
        Why::Interrupted => (Code::Interrupted, false),
        _ if failure.is_full() => (Code::SlotFull, false),
        _ if failure.lacks_base() => (Code::DeltaBaseMissing, false),
        _ if has(&HOPELESS) => (Code::RegistryUnreachable, false),
        _ if has(&UNKNOWN) => (Code::ImageUnknown, false),
        _ if has(&UNREACHABLE) => (Code::RegistryUnreachable, true),
        _ if status_of_registry(failure).is_some() => (Code::RegistryUnreachable, true),
        _ if has(&REFUSED) => (Code::RegistryRefused, false),
        // The next download of a damaged layer may be complete.
        _ if text.contains("filesystem layer verification failed") => (Code::EngineFailed, true),
        _ => (Code::EngineFailed, false),
    }
}

/// The HTTP status of an answer that is a page for people, which comes from a web server or a proxy in front of the registry. The words are those
/// of moby's registry client (distribution, `registry/client/errors.go`, and Go's decoder of JSON): it shows the page, and hides `Retry-After`.
fn page(text: &str) -> Option<u16> {
    if text.contains("error unmarshalling content: invalid character '<'") {
        return Some(200);
    }
    let (_, rest) = text.split_once("error parsing http ")?;
    let (status, _) = rest.split_once(" response body")?;
    status.parse().ok()
}

/// The HTTP status with which a registry that was reached fails: of a limit, or of the server. The words are those of moby's registry client, and of its newer
/// store.
pub(super) fn status_of_registry(failure: &Failure) -> Option<u16> {
    if !matches!(failure.why, Why::Refused(_) | Why::Reported) {
        return None;
    }
    let text = failure.text.to_ascii_lowercase();
    let after = |words: &str| {
        let (_, rest) = text.split_once(words)?;
        rest.split(|c: char| !c.is_ascii_digit()).find(|word| word.len() == 3)?.parse().ok()
    };
    let is_limited = ["toomanyrequests", "too many requests"].iter().any(|words| text.contains(words));
    let status = page(&text)
        .or_else(|| after("unexpected http status"))
        .or_else(|| after("unexpected status from"))
        .or(is_limited.then_some(429));
    status.filter(|status| matches!(status, 429 | 500..))
}

fn by_status(status: u16) -> (Code, bool) {
    match status {
        404 | 410 => (Code::ImageUnknown, false),
        401 | 403 => (Code::RegistryRefused, false),
        // A proxy that wants a password.
        407 => (Code::RegistryUnreachable, false),
        // The page of a network that wants a log-in first, a limit, a server that fails: time may help.
        200 | 408 | 425 | 429 | 500.. => (Code::RegistryUnreachable, true),
        _ => (Code::EngineFailed, false),
    }
}

/// Whether a proxy did not connect the engine to the registry. Go's client reports the words of the proxy's status, and nothing else
/// (net/http, `Transport.dialConn`).
pub(super) fn proxy_cannot_connect(failure: &Failure) -> bool {
    [": Bad Gateway", ": Service Unavailable", ": Gateway Timeout"]
        .iter()
        .any(|end| failure.text.ends_with(end))
}

/// The engine expects this header in the URL-safe alphabet (RFC 4648, 5) and takes anything else for no credentials; bollard 0.21 writes the
/// other alphabet.
pub(super) fn url_safe_credentials(mut request: BollardRequest) -> BollardRequest {
    const HEADER: &str = "x-registry-auth";
    if let Some(header) = request.headers_mut().get_mut(HEADER) {
        let safe = header.to_str().map(|v| v.replace('+', "-").replace('/', "_"));
        if let Some(safe) = safe.ok().and_then(|v| v.parse().ok()) {
            *header = safe;
        }
        header.set_sensitive(true);
    }
    request
}
