//! A release with many files: some boards have thousands of device trees and overlays.

use std::cell::Cell;
use std::rc::Rc;

use copal::boot_files::deploy::Purpose;
use copal::sys::crash_point;

use super::support::Device;

/// How often a folder is listed while a release of `n` files is deployed, deployed again, replaced by another, and put back.
fn lists(n: usize) -> [usize; 4] {
    let release = |device: &Device, content: &str| {
        let files: Vec<_> =
            (0..n).map(|i| (format!("overlays/{i}.dtbo"), format!("{content} {i}"))).collect();
        let texts: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        device.release(&texts);
    };
    let device = Device::new(&[], &[]);
    let [one, other] = ["one", "other"];
    [(one, Purpose::Update), (one, Purpose::Update), (other, Purpose::Update), (one, Purpose::Undo)].map(
        |(content, purpose)| {
            release(&device, content);
            let count: Rc<Cell<usize>> = Rc::default();
            let counted = count.clone();
            let armed = crash_point::arm(move |step, _| {
                counted.set(counted.get() + usize::from(step == "names"));
                Ok(())
            });
            device.deploy(purpose).unwrap();
            drop(armed);
            assert_eq!(device.see()[&format!("overlays/{}.dtbo", n - 1)], format!("{content} {}", n - 1));
            count.get()
        },
    )
}

#[test]
fn a_folder_is_not_listed_for_each_file() {
    let few = lists(3);
    assert_eq!(few, lists(60));
    assert!(few.iter().all(|n| *n > 0), "{few:?}");
}
