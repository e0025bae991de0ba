//! Signatures of volume managers at the end of a used disk, judged by `blkid`.

use std::path::Path;
use std::process::Command;

use crate::kit::needs::{needs, tools};
use crate::support::*;

/// The disk, with an end that no image of this program reaches.
const SIZE: u64 = 100 * MIB;

/// Bytes at their offsets, as a volume manager has left them.
type Marks = Vec<(u64, Vec<u8>)>;

/// Version 1.0 of MD: magic, major version, and where it lies in sectors (linux/raid/md_p.h).
fn md() -> Marks {
    let at = (SIZE - 0x2000) & !0xfff;
    vec![
        (at, [0xa92b_4efc_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat()),
        (at + 144, (at / 512).to_le_bytes().to_vec()),
    ]
}

fn md_090() -> Marks {
    let at = (SIZE & !0xffff) - 0x1_0000;
    vec![(at, [0xa92b_4efc_u32.to_le_bytes(), 0_u32.to_le_bytes(), 90_u32.to_le_bytes()].concat())]
}

fn imsm() -> Marks {
    vec![(SIZE - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00".to_vec())]
}

/// Signature, checksum, GUID and version of a DDF header.
fn ddf() -> Marks {
    let mut header = vec![0xde, 0x11, 0xde, 0x11];
    header.resize(32, 0);
    header.extend(b"02.00.00");
    vec![(SIZE - 512, header)]
}

/// Uberblocks of both labels at the end.
fn zfs() -> Marks {
    let mut uberblocks = vec![0; 128 << 10];
    for block in uberblocks.chunks_mut(1 << 10) {
        block[..8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
        block[8..16].copy_from_slice(&5000_u64.to_le_bytes());
    }
    [SIZE - (384 << 10), SIZE - (128 << 10)].map(|at| (at, uberblocks.clone())).into()
}

fn put(marks: &Marks, disk: &Path) {
    for (at, bytes) in marks {
        poke(disk, *at, bytes);
    }
}

/// What `blkid` finds, past its cache.
fn blkid(disk: &Path) -> String {
    let out = Command::new("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(disk).output().unwrap();
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

#[test]
fn what_a_volume_manager_left_behind_the_image_is_removed_and_nothing_else() {
    needs!(tools);
    let dir = folder();
    let kinds: [(&str, Marks); 5] = [
        ("linux_raid_member", md()),
        ("linux_raid_member", md_090()),
        ("isw_raid_member", imsm()),
        ("ddf_raid_member", ddf()),
        ("zfs_member", zfs()),
    ];
    for (name, marks) in kinds {
        let target = dir.path().join(name);
        std::fs::File::create(&target).unwrap().set_len(SIZE).unwrap();
        put(&marks, &target);
        assert_eq!(blkid(&target), name);
        // Data of the factory, between the sectors.
        let kept = [SIZE - MIB, SIZE - 200 * 1024 + 512, SIZE - 3 * 512];
        kept.iter().for_each(|at| poke(&target, *at, b"serial 4711"));
        let plan = flash(os_image(), &target, &["--plan"]);
        let text = String::from_utf8_lossy(&plan.stdout).into_owned();
        assert!(
            text.contains(&format!("signature of {name}")) && !text.contains("nothing that is known"),
            "{text}"
        );
        assert!(text.contains("at the end of the disk"), "{text}");
        flashed(os_image(), &target, &[]);
        assert_equal(os_image(), &target);
        assert_eq!(blkid(&target), "", "{name}");
        for at in kept {
            assert_eq!(read(&target, at, 11), b"serial 4711", "{name}: {at}");
        }
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn a_pool_goes_from_a_disk_too_and_a_member_of_an_array_is_refused() {
    let Some(disk) = dirty("a_pool_goes_from_a_disk_too_and_a_member_of_an_array_is_refused", SIZE) else {
        return;
    };
    let clean = vec![0; MIB as usize];
    for marks in [md(), md_090(), imsm(), ddf()] {
        poke(&disk.node, SIZE - MIB, &clean);
        put(&marks, &disk.node);
        let out = flash(os_image(), &disk.node, &["--json"]);
        let line = last_line(&out);
        assert_eq!((out.status.code(), &line["code"]), (Some(3), &"target-raid-member".into()), "{line}");
    }
    poke(&disk.node, SIZE - MIB, &clean);
    put(&zfs(), &disk.node);
    flashed(os_image(), &disk.node, &[]);
    assert!(read(&disk.node, SIZE - MIB, MIB).iter().all(|b| *b == 0));
}

/// What the image overwrites is the image's, whatever it looks like.
#[test]
fn a_signature_within_the_image_stays_the_images() {
    needs!(tools);
    let dir = folder();
    let (image, target) = (dir.path().join("os.img"), dir.path().join("disk"));
    std::fs::copy(os_image(), &image).unwrap();
    std::fs::File::options().write(true).open(&image).unwrap().set_len(SIZE).unwrap();
    put(&zfs(), &image);
    fill(&target, SIZE);
    put(&zfs(), &target);
    flashed(&image, &target, &[]);
    assert_equal(&image, &target);
}
