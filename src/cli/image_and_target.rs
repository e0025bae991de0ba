//! The two words that `flash`, `verify` and `bootloader` have in common: `IMAGE TARGET`, or `--image` and `--target`.

use std::path::PathBuf;

use crate::error::{Code, Error, Result};

/// Image and target, from the options and the plain words of a command line.
///
/// # Errors
/// One of them is named twice.
pub(super) fn in_their_places(
    verb: &str,
    options: [Option<PathBuf>; 2],
    plain: [Option<PathBuf>; 2],
) -> Result<(Option<PathBuf>, Option<PathBuf>)> {
    let ([image, target], [first, second]) = (options, plain);
    match (image, target, first, second) {
        (image, target, None, _) => Ok((image, target)),
        (None, target, Some(image), None) => Ok((Some(image), target)),
        (None, None, image, target) => Ok((image, target)),
        (Some(image), None, Some(target), None) => Ok((Some(image), Some(target))),
        _ => Err(Error::new(Code::Usage, "the image or the target is named twice").with_hint(order(verb))),
    }
}

/// [`in_their_places`], for a verb that needs both.
pub(super) fn both(
    verb: &str,
    options: [Option<PathBuf>; 2],
    plain: [Option<PathBuf>; 2],
) -> Result<(PathBuf, PathBuf)> {
    let missing = match in_their_places(verb, options, plain)? {
        (Some(image), Some(target)) => return Ok((image, target)),
        (Some(_), None) => "--target",
        (None, Some(_)) => "--image",
        (None, None) => "--image and --target",
    };
    let message = format!("cannot {verb}: {missing} not given");
    Err(Error::new(Code::Usage, message).object(missing).with_hint(order(verb)))
}

fn order(verb: &str) -> String {
    format!("the order is `copal {verb} IMAGE TARGET`; see `copal help {verb}`")
}
