//! SIGKILL at random moments.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::kit::needs::{needs, tools};
use crate::kit::prove;
use crate::support::*;

const TEST: &str = "killed_at_any_moment_it_leaves_no_table_and_continues";
const ROUNDS: usize = 110;
const SAMPLE: usize = 6;

#[derive(Debug, Default)]
struct Seen {
    untouched: u32,
    cleared: u32,
    body: u32,
    complete: u32,
    compared: u32,
}

#[test]
fn killed_at_any_moment_it_leaves_no_table_and_continues() {
    needs!(tools);
    let size = std::fs::metadata(os_image()).unwrap().len();
    let Some(disk) = dirty(TEST, size) else { return };
    // An old system: boot sector and both partition tables.
    let spots: [(u64, &[u8]); 4] =
        [(510, &[0x55, 0xaa]), (512, b"EFI PART"), (4096, b"EFI PART"), (size - 512, b"EFI PART")];
    let bootable = || spots.iter().any(|(at, sign)| read(&disk.node, *at, sign.len() as u64) == *sign);
    let image = std::fs::read(os_image()).unwrap();
    // The first data behind the first MiB: what a continued flash finds first.
    let first_data = (MIB..size)
        .step_by(MIB as usize)
        .find(|at| image[*at as usize..][..MIB as usize].iter().any(|b| *b != 0));
    let first_data = first_data.unwrap();
    let first_chunk = &image[first_data as usize..][..MIB as usize];

    let began = Instant::now();
    flashed(os_image(), &disk.node, &[]);
    let whole = began.elapsed();
    // A kill comes within this time. It follows the machine, which may become faster or slower while the test runs.
    let mut limit = whole * 11 / 10;

    let mut seen = Seen::default();
    let rounds = prove::draws("cuts", TEST, ROUNDS, SAMPLE);
    let count = rounds.len();
    for (round, mut rng) in rounds.into_iter().enumerate() {
        fill(&disk.file, size);
        for (at, sign) in spots {
            poke(&disk.file, at, sign);
        }
        tool(&["blockdev", "--flushbufs", disk.name()]);
        let old_head = read(&disk.node, 0, MIB);

        let mut child = copal()
            .args(["flash", "--image"])
            .arg(os_image())
            .arg("--target")
            .arg(&disk.node)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(rng.u64(0..limit.as_micros() as u64)));
        child.kill().unwrap();
        let status = child.wait().unwrap();

        if status.success() {
            assert_equal(os_image(), &disk.node);
            seen.complete += 1;
            limit = limit * 9 / 10;
        } else if read(&disk.node, 0, MIB) == old_head {
            assert!(
                read(&disk.node, MIB, 8 * MIB).iter().all(|b| *b == 0xA5),
                "written before the table was cleared"
            );
            seen.untouched += 1;
            limit = limit * 10 / 9;
        } else if bootable() {
            // In the first instants, when the old backup table is still to go: nothing else was touched. In the last
            // ones: all of the body is there, and was read back.
            let body = read(&disk.node, MIB, size - MIB - 33 * 512);
            if body.iter().all(|b| *b == 0xA5) {
                seen.untouched += 1;
                flashed(os_image(), &disk.node, &[]);
                continue;
            }
            assert!(
                body == image[MIB as usize..(size - 33 * 512) as usize],
                "round {round}: table of a half-written disk"
            );
            seen.complete += 1;
        } else {
            seen.cleared += 1;
        }
        let continued = read(&disk.node, first_data, MIB) == first_chunk;
        seen.body += u32::from(continued);

        let receipt = flashed(os_image(), &disk.node, &[]);
        assert_equal(os_image(), &disk.node);
        let skipped = receipt["bytes"]["skipped"].as_u64().unwrap();
        assert!(!continued || skipped > 0, "round {round}: did not continue: {receipt}");
        seen.compared += u32::from(skipped > 0);
    }
    eprintln!("{count} kills within {whole:?}: {seen:?}");
    // A sample may do so by chance.
    let few = u32::try_from(ROUNDS / 4).unwrap();
    assert!(count < ROUNDS || seen.body > few && seen.cleared > few, "the kills missed the write: {seen:?}");
}
