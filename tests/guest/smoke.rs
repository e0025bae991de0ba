//! The small guest itself.

use std::time::Duration;

use crate::support::{Disk, Guest, folder, tool};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn a_small_guest_runs_copal_and_writes_a_vfat_disk() {
    let Some(guest) = Guest::small("a_small_guest_runs_copal_and_writes_a_vfat_disk") else { return };
    let dir = folder();
    let image = dir.path().join("fat.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    tool(&["mkfs.vfat", "-n", "GUEST", image.to_str().unwrap()]);
    let outcome = guest
        .disk(Disk::Virtio, &image, "fat")
        .module("vfat")
        .copal()
        .script(
            "copal --version >/host/version
             mount -t vfat /dev/vda /mnt
             echo from the guest >/mnt/file.txt
             umount /mnt",
        )
        .run(LIMIT)
        .ok();
    println!("took {:?}", outcome.took);
    assert_eq!(outcome.file("version").trim(), concat!("copal ", env!("CARGO_PKG_VERSION")));
    assert_eq!(tool(&["mtype", "-i", image.to_str().unwrap(), "::/file.txt"]), "from the guest\n");
}
