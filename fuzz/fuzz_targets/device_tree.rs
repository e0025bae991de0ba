//! Device trees and the settings that name them: whatever is in them, each expected path stays below its folder, and a second look finds the same.
#![no_main]

use copal::config::update_conf::{DeviceTreeKey, UpdateConf, plain_path};
use copal::device_tree::ExpectedFiles;
use copal::device_tree::blob::Blob;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // A tree itself: a property is in a node, and nothing is outside of the bytes.
    if let Ok(blob) = Blob::check(data) {
        blob.properties(&mut |nodes, property| {
            assert!(!nodes.is_empty() && property.name.len() + property.value.len() < data.len());
        });
    }
    // Three files, and one for every other name, such as an included one.
    let mut parts = data.splitn(4, |b| *b == 0x1e).map(<[u8]>::to_vec);
    let [uenv, extlinux, config, other] = [(); 4].map(|()| parts.next());
    let conf = UpdateConf { device_tree_keys: DeviceTreeKey::ALL.to_vec(), ..UpdateConf::default() };
    let is_searched = data.first().is_some_and(|b| b % 2 == 1);
    let look = || {
        ExpectedFiles::of_files(&conf, is_searched, &mut |path| {
            Ok(match path {
                "extra_uEnv.txt" => uenv.clone(),
                "extlinux/extlinux.conf" => extlinux.clone(),
                "config.txt" => config.clone(),
                _ => other.clone(),
            })
        })
    };
    let expected = look();
    for named in &expected.named {
        assert_eq!(plain_path(&named.path.to_string_lossy()).as_ref(), Some(&named.path), "{named:?}");
    }
    assert_eq!(look(), expected);
});
