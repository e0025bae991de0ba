//! Limits for callers of the service. Only root can make the service hold more than a fixed amount. No caller can block the answers to root.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use zbus::message::Header;

use super::dbus_error::DbusError;

/// Limit of a message in bytes. `Update` carries an environment and credentials.
pub(super) const MAX_CALL_BYTES: usize = 256 << 10;
/// Limit of a call by users other than root: a property's name, or a plan without options.
const MAX_BYTES_OF_OTHERS: usize = 4 << 10;
/// Concurrent calls of one connection, unless it is root's.
const MAX_CALLS_OF_ONE: usize = 8;
/// Concurrent calls of root, and of all others together.
const MAX_CALLS: usize = 128;
/// Bytes of root's concurrent calls, and of the calls of unknown senders.
const MAX_HELD_BYTES: usize = 1 << 20;
/// Calls that wait until the bus names their sender's user.
const MAX_WAITING: usize = 64;
const MAX_KNOWN: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// Unique name of the sender's connection.
    pub sender: String,
    pub serial: u32,
    pub size: usize, // bytes
    pub reply: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Admit,
    /// Keep it until its sender's user is known.
    Wait,
    /// Stop reading until fewer calls wait: the sender may be root.
    Later,
    Refuse(&'static str),
    Drop,
}

#[derive(Debug, Default)]
struct Caller {
    /// Root, or the user who runs the service.
    root: Option<bool>,
    /// Calls without a reply yet, by serial number.
    open: BTreeMap<u32, Open>,
}

#[derive(Debug)]
struct Open {
    size: usize,
    reply: bool,
}

#[derive(Debug, Default)]
struct Load {
    calls: usize,
    bytes: usize,
}

/// All connections that call: the bus never uses a unique name twice.
#[derive(Debug, Default)]
pub(super) struct Callers {
    known: HashMap<String, Caller>,
    load: [Load; 2],
    /// Calls of unknown users, with their messages.
    waiting: Vec<(Call, Vec<u8>)>,
}

impl Callers {
    /// Decides before the body is read. Counts an admitted call.
    pub(super) fn judge(&mut self, call: &Call) -> Verdict {
        let verdict = self.decide(call);
        match verdict {
            Verdict::Admit => {
                let open = Open { size: call.size, reply: call.reply };
                self.close(&call.sender, call.serial);
                let caller = self.known.entry(call.sender.clone()).or_default();
                caller.open.insert(call.serial, open);
                let load = load(&mut self.load, caller);
                (load.calls, load.bytes) = (load.calls + 1, load.bytes + call.size);
                verdict
            }
            Verdict::Refuse(_) if !call.reply => Verdict::Drop,
            _ => verdict,
        }
    }

    fn decide(&self, call: &Call) -> Verdict {
        if call.size > MAX_CALL_BYTES {
            return Verdict::Refuse("the message is longer than 256 KiB; send less");
        }
        let caller = self.known.get(&call.sender);
        let Some(root) = caller.and_then(|c| c.root) else {
            let bytes: usize = self.waiting.iter().map(|(c, _)| c.size).sum();
            let fits = self.waiting.len() < MAX_WAITING && bytes + call.size <= MAX_HELD_BYTES;
            return if fits { Verdict::Wait } else { Verdict::Later };
        };
        let [of_root, of_others] = &self.load;
        let fits = if root {
            of_root.calls < MAX_CALLS && of_root.bytes + call.size <= MAX_HELD_BYTES
        } else if !call.reply {
            // Other users than root may only read.
            return Verdict::Drop;
        } else if call.size > MAX_BYTES_OF_OTHERS {
            return Verdict::Refuse("only root may send a message longer than 4 KiB");
        } else {
            of_others.calls < MAX_CALLS && caller.is_some_and(|c| c.open.len() < MAX_CALLS_OF_ONE)
        };
        if fits { Verdict::Admit } else { Verdict::Refuse(TOO_MANY) }
    }

    /// Returns whether it is the first call of its sender.
    pub(super) fn wait(&mut self, call: Call, message: Vec<u8>) -> bool {
        let is_first = !self.waiting.iter().any(|(other, _)| other.sender == call.sender);
        self.waiting.push((call, message));
        is_first
    }

    /// Returns the waiting calls of `sender`. `root` is `None` where the bus does not name the user.
    pub(super) fn identify(&mut self, sender: &str, root: Option<bool>) -> Vec<(Call, Vec<u8>)> {
        let all = std::mem::take(&mut self.waiting);
        let (own, rest) = all.into_iter().partition(|(call, _)| call.sender == sender);
        self.waiting = rest;
        if root.is_none() {
            return own;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, caller| !caller.open.is_empty());
        }
        self.known.entry(sender.to_owned()).or_default().root = root;
        own
    }

    pub(super) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// To be called while a call of `sender` is carried out.
    pub(super) fn is_root(&self, sender: &str) -> bool {
        self.known.get(sender).and_then(|c| c.root).unwrap_or(false)
    }

    pub(super) fn expects_reply(&self, sender: &str, serial: u32) -> bool {
        let open = self.known.get(sender).and_then(|c| c.open.get(&serial));
        open.is_none_or(|open| open.reply)
    }

    pub(super) fn close(&mut self, sender: &str, serial: u32) {
        if let Some(caller) = self.known.get_mut(sender)
            && let Some(open) = caller.open.remove(&serial)
        {
            let load = load(&mut self.load, caller);
            (load.calls, load.bytes) = (load.calls - 1, load.bytes - open.size);
        }
    }
}

fn load<'a>([root, others]: &'a mut [Load; 2], caller: &Caller) -> &'a mut Load {
    if caller.root == Some(true) { root } else { others }
}

const TOO_MANY: &str = "too many calls at once; wait for a reply, then call again";

/// Refuses callers other than root and the user who runs this service. The bus's policy does the same, but may be missing.
pub(super) fn check_root(callers: &Mutex<Callers>, header: &Header<'_>, what: &str) -> Result<(), DbusError> {
    let callers = callers.lock().unwrap_or_else(PoisonError::into_inner);
    match header.sender() {
        Some(sender) if callers.is_root(sender) => Ok(()),
        _ => Err(DbusError::denied(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(sender: &str, serial: u32) -> Call {
        Call { sender: sender.to_owned(), serial, size: 200, reply: true }
    }

    fn known(root: &[&str], others: &[&str]) -> Callers {
        let mut callers = Callers::default();
        root.iter().for_each(|name| drop(callers.identify(name, Some(true))));
        others.iter().for_each(|name| drop(callers.identify(name, Some(false))));
        callers
    }

    #[test]
    fn a_caller_waits_until_its_user_is_known() {
        let mut callers = Callers::default();
        assert_eq!(callers.judge(&call(":1", 1)), Verdict::Wait);
        assert!(callers.wait(call(":1", 1), vec![1]), "the bus is to be asked");
        assert!(!callers.wait(call(":1", 2), vec![2]), "the bus was asked");
        assert!(callers.wait(call(":2", 1), vec![3]));
        let calls = callers.identify(":1", Some(true));
        assert_eq!(
            calls.iter().map(|(c, m)| (c.serial, m.clone())).collect::<Vec<_>>(),
            [(1, vec![1]), (2, vec![2])]
        );
        assert!(callers.is_root(":1"));
        assert_eq!(callers.judge(&call(":1", 3)), Verdict::Admit);
        assert!(callers.any_waits());
        assert_eq!(callers.identify(":2", None).len(), 1);
        assert!(!callers.any_waits() && !callers.is_root(":2"));
    }

    #[test]
    fn one_connection_has_eight_calls_and_gets_them_back_with_their_replies() {
        let mut callers = known(&[], &[":1", ":2"]);
        for serial in 1..=8 {
            assert_eq!(callers.judge(&call(":1", serial)), Verdict::Admit);
        }
        assert_eq!(callers.judge(&call(":1", 9)), Verdict::Refuse(TOO_MANY));
        assert_eq!(callers.judge(&call(":2", 1)), Verdict::Admit);
        callers.close(":1", 3);
        callers.close(":1", 3);
        assert_eq!(callers.judge(&call(":1", 9)), Verdict::Admit);
        assert_eq!(callers.judge(&call(":1", 10)), Verdict::Refuse(TOO_MANY));
    }

    #[test]
    fn however_many_others_call_there_is_a_place_for_root() {
        let names: Vec<String> = (0..40).map(|n| format!(":{n}")).collect();
        let mut callers = known(&[":root"], &names.iter().map(String::as_str).collect::<Vec<_>>());
        let admitted = names.iter().flat_map(|name| (1..=8).map(|serial| call(name, serial)));
        let admitted = admitted.filter(|c| callers.judge(c) == Verdict::Admit).count();
        assert_eq!(admitted, MAX_CALLS);
        assert_eq!(callers.judge(&call(":root", 1)), Verdict::Admit);
        let long = |serial| Call { size: MAX_CALL_BYTES, ..call(":root", serial) };
        let admitted = (2..100).filter(|&serial| callers.judge(&long(serial)) == Verdict::Admit).count();
        assert_eq!(admitted, 3);
        (2..100).for_each(|serial| callers.close(":root", serial));
        assert_eq!(callers.judge(&long(2)), Verdict::Admit);
    }

    #[test]
    fn what_cannot_matter_is_skipped() {
        let mut callers = known(&[":root"], &[":1"]);
        let silent = |name| Call { reply: false, ..call(name, 1) };
        assert_eq!(callers.judge(&silent(":1")), Verdict::Drop);
        assert_eq!(callers.judge(&silent(":root")), Verdict::Admit);
        assert!(!callers.expects_reply(":root", 1));
        assert!(callers.expects_reply(":root", 2));
        let long = Call { size: MAX_CALL_BYTES + 1, ..call(":root", 2) };
        assert!(matches!(callers.judge(&long), Verdict::Refuse(_)));
        assert_eq!(callers.judge(&Call { reply: false, ..long }), Verdict::Drop);
        let of_other = Call { size: MAX_BYTES_OF_OTHERS + 1, ..call(":1", 2) };
        assert!(matches!(callers.judge(&of_other), Verdict::Refuse(_)));
    }

    #[test]
    fn connections_that_come_and_go_are_forgotten_but_for_those_with_calls() {
        let mut callers = known(&[":root"], &[]);
        assert_eq!(callers.judge(&call(":root", 1)), Verdict::Admit);
        for n in 0..5 * MAX_KNOWN {
            callers.identify(&format!(":{n}"), Some(false));
        }
        assert!(callers.known.len() <= MAX_KNOWN);
        assert!(callers.is_root(":root"));
    }

    #[test]
    fn calls_of_unknown_senders_wait_in_a_bounded_space_and_none_is_refused() {
        for (size, most) in [(100_000, MAX_HELD_BYTES / 100_000), (200, MAX_WAITING)] {
            let mut callers = known(&[], &[]);
            for n in 0..most {
                let call = Call { size, ..call(&format!(":{n}"), 1) };
                assert_eq!(callers.judge(&call), Verdict::Wait);
                callers.wait(call, Vec::new());
            }
            let next = Call { size, ..call(":root", 1) };
            assert_eq!(callers.judge(&next), Verdict::Later);
            callers.identify(":0", Some(false));
            assert_eq!(callers.judge(&next), Verdict::Wait);
        }
    }
}
