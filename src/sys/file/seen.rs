//! For tests: an observer, called before each change that a power cut could precede.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

type Look = Box<dyn FnMut(PathBuf)>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// Calls `look` with the path before each further change by this thread.
pub(crate) fn each_change(look: impl FnMut(PathBuf) + 'static) {
    LOOK.with(|l| *l.borrow_mut() = Some(Box::new(look)));
}

pub(crate) fn no_more() {
    LOOK.with(|l| *l.borrow_mut() = None);
}

pub(crate) fn change(path: &Path) {
    LOOK.with(|l| {
        if let Some(look) = l.borrow_mut().as_mut() {
            look(path.to_owned());
        }
    });
}
