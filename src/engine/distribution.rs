//! Asks the registry for an image before the first change.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;

use super::failure::{Failure, Why};
use super::pull::{judge, proxy_cannot_connect, status_of_registry};
use super::{Engine, HUB, Reference};
use crate::engine::credentials::Credentials;
use crate::error::{Code, Result};

/// Between two questions about an unreachable registry.
const REGISTRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a pull is begun with a registry that fails.
const BEGINNINGS: u32 = 3;

const MAX_ADDRESSES: usize = 8;

/// What the engine's answer means for the pull.
enum Verdict {
    Fails,
    /// It fails until the network changes.
    Unreachable,
    Silent,
    Unclear,
}

impl Engine {
    /// Whether the registry has the image `reference` and allows the pull. The check runs before the slot is emptied.
    ///
    /// Only a certain failure refuses. The engine answers for the registry, but handles a pull differently: mirrors, registries that know a
    /// manifest only by its tag, and plain HTTP (moby, `daemon/images/image_pull.go` and `distribution/pull_v2.go`). So the refusal is the
    /// engine's answer to a pull that was begun.
    pub fn check_pullable(&self, reference: &str) -> Result<()> {
        let name = Reference::parse(reference)?;
        let found = self.credentials_for(&name);
        let credentials = found.as_ref().ok().and_then(Option::as_ref);
        let Some(failure) = self.refusal(&name, credentials) else { return Ok(()) };
        let (code, _) = judge(&failure);
        let error = failure.coded(code, &format!("cannot pull the image {reference}")).object(reference);
        Err(match &found {
            Err(trouble) if code == Code::RegistryRefused => error.and_also(&trouble.message()),
            _ => error,
        })
    }

    fn refusal(&self, name: &Reference, credentials: Option<&Credentials>) -> Option<Failure> {
        let limit = self.timeouts.registry;
        let began = Instant::now();
        let reached = knock(name.registry(), limit);
        let mut unreachable = None;
        loop {
            let left = limit.saturating_sub(began.elapsed());
            let image = name.to_string();
            let answer = self.docker.inspect_registry_image(&image, credentials.map(Credentials::for_engine));
            let Err(failure) = self.unless_signal(left, answer) else { return None };
            match verdict(&failure) {
                Verdict::Fails => break,
                Verdict::Unreachable if began.elapsed() + REGISTRY_INTERVAL >= limit => break,
                Verdict::Unreachable => {
                    tracing::debug!("{name}: {}; asking again", failure.text);
                    unreachable = Some(failure);
                    thread::sleep(REGISTRY_INTERVAL);
                }
                Verdict::Silent if unreachable.is_some() => break,
                Verdict::Silent => {
                    return self.is_out_of_reach(name, &reached).then(|| out_of_reach(name, limit));
                }
                // The engine answers so for errors of its own, too, and for mirrors and plain HTTP.
                Verdict::Unclear if status_of_registry(&failure).is_some() => break,
                Verdict::Unclear => {
                    tracing::debug!("pulling {name} without an answer of the registry: {}", failure.text);
                    return None;
                }
            }
        }
        let failure = self.failure_of_pull(name, credentials)?;
        match verdict(&failure) {
            Verdict::Fails | Verdict::Unreachable => Some(failure),
            // The network comes and goes.
            Verdict::Silent => unreachable.filter(|_| self.is_out_of_reach(name, &reached)),
            Verdict::Unclear => self.goes_on_failing(name, credentials, &failure).then_some(failure),
        }
    }

    /// Whether the registry answers a pull with the same status each time: it has too many requests, or is out of order.
    fn goes_on_failing(&self, name: &Reference, credentials: Option<&Credentials>, first: &Failure) -> bool {
        let Some(status) = status_of_registry(first) else { return false };
        (1..BEGINNINGS).all(|_| {
            tracing::debug!("{name}: {}; beginning another pull", first.text);
            thread::sleep(self.timeouts.registry / 10);
            let next = self.failure_of_pull(name, credentials);
            next.and_then(|failure| status_of_registry(&failure)) == Some(status)
        })
    }

    /// Begins a pull, and drops it. Returns its failure or timeout; `None` when it begins well.
    fn failure_of_pull(&self, name: &Reference, credentials: Option<&Credentials>) -> Option<Failure> {
        let mut answers = self.answers_to_pull(name, credentials);
        let first = self.unless_signal(self.timeouts.registry, async { answers.next().await.transpose() });
        drop(answers);
        if first.is_ok() {
            tracing::debug!("the registry refuses {name}, but the engine can pull it");
        }
        self.close_dropped();
        first.err()
    }

    /// Whether the registry accepts no connection, and the engine has no other way (proxy, mirror) to it.
    fn is_out_of_reach(&self, name: &Reference, reached: &Receiver<()>) -> bool {
        if reached.try_recv().is_ok() {
            tracing::debug!("the registry of {name} is slow; waiting for it");
            return false;
        }
        let Ok(info) = self.unless_signal(self.timeouts.registry, self.docker.info()) else { return false };
        let given = |text: Option<String>| text.is_some_and(|t| !t.is_empty());
        let mirrors = info.registry_config.and_then(|c| c.mirrors).is_some_and(|m| !m.is_empty());
        !(given(info.http_proxy) || given(info.https_proxy) || mirrors && name.registry() == HUB)
    }
}

fn verdict(failure: &Failure) -> Verdict {
    match judge(failure) {
        (Code::ImageUnknown | Code::RegistryRefused, _) | (Code::RegistryUnreachable, false) => {
            Verdict::Fails
        }
        // The only failures that mean an unreachable registry: Go's dialer reports the first for any reason (net/net.go, `OpError`). A registry that
        // is reached and fails may work in a moment.
        (Code::RegistryUnreachable, true)
            if failure.text.contains("dial tcp") || proxy_cannot_connect(failure) =>
        {
            Verdict::Unreachable
        }
        _ if failure.why == Why::Silent => Verdict::Silent,
        _ => Verdict::Unclear,
    }
}

fn out_of_reach(name: &Reference, limit: Duration) -> Failure {
    Failure::unreachable(format!("{} takes no connection within {} s", name.registry(), limit.as_secs()))
}

/// Connects to all addresses of the registry at once, and closes the connections. Sends when one succeeds.
fn knock(registry: &str, limit: Duration) -> Receiver<()> {
    let (reached, said) = mpsc::channel();
    let host = if registry == HUB { "registry-1.docker.io" } else { registry };
    let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.bytes().all(|b| b.is_ascii_digit()));
    let places = match has_port {
        true => vec![host.to_owned()],
        // The engine's configuration decides which of them it uses.
        false => vec![format!("{host}:443"), format!("{host}:80")],
    };
    let apart = |work: Box<dyn FnOnce() + Send>| {
        if let Err(e) = thread::Builder::new().name("registry".to_owned()).spawn(work) {
            tracing::debug!("cannot start a thread: {e}");
        }
    };
    for place in places {
        let reached = reached.clone();
        apart(Box::new(move || {
            for address in place.to_socket_addrs().into_iter().flatten().take(MAX_ADDRESSES) {
                let reached = reached.clone();
                apart(Box::new(move || {
                    if TcpStream::connect_timeout(&address, limit).is_ok() {
                        // The receiver may be gone.
                        reached.send(()).unwrap_or_default();
                    }
                }));
            }
        }));
    }
    said
}
