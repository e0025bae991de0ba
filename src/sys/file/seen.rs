//! For tests: somebody who looks on, before each change that a power cut could come before.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

type Look = Box<dyn FnMut(PathBuf)>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// Calls `look` before each change that this thread makes from now on, with the path that changes.
pub(crate) fn each_change(look: impl FnMut(PathBuf) + 'static) {
    LOOK.with(|l| *l.borrow_mut() = Some(Box::new(look)));
}

/// Nobody looks on any more.
pub(crate) fn no_more() {
    LOOK.with(|l| *l.borrow_mut() = None);
}

/// `path` is about to change.
pub(crate) fn change(path: &Path) {
    LOOK.with(|l| {
        if let Some(look) = l.borrow_mut().as_mut() {
            look(path.to_owned());
        }
    });
}
