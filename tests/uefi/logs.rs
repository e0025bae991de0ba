//! Logs of real firmware. OVMF's is from a virtual board of `qemu/boards`, in user mode; the others from public test data
//! (github.com/google/go-attestation, attest/testdata, `ubuntu_2104_shielded_vm_no_secure_boot_eventlog`, `sb_cert_eventlog` and
//! `crypto_agile_eventlog`). The values of OVMF are those that its TPM had; the others were computed by a separate program in Python.

use std::io::Read as _;

use copal::measurements::event_log::Event;
use copal::measurements::pcr::{self, Measured};
use copal::measurements::{EventLog, Values};
use copal::uefi::Guid;
use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::of_hashes;
use proptest::prelude::*;

const LOGS: [(&str, &[u8], [&str; 4]); 4] = [
    (
        "OVMF",
        include_bytes!("logs/ovmf-2025.02-user-mode.gz"),
        [
            "4b09b394bea67d1e139ef509c364cd3d6109a47b071d9c8deb3588766ba146dc",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "82c6ab706bb90cd59abd278d77f4956ef9a24183e770072b93b7df4e732e2417",
        ],
    ),
    (
        "shielded VM",
        include_bytes!("logs/shielded-vm-ubuntu-21.04.gz"),
        [
            "24af52a4f429b71a3184a6d64cddad17e54ea030e2aa6576bf3a5a3d8bd3328f",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "0d8847bc5eca06452df10e2f214363845c7ac11d47525a5474e225e72ce25dfe",
        ],
    ),
    (
        "a PC with secure boot",
        include_bytes!("logs/pc-secure-boot.gz"),
        [
            "fcecb56acc303862b30eb342c4990beb50b5e0ab89722449c2d9a73f37b019fe",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "51b30488c9e6255d822bdc1b20d9a92c32bde6c3e7bc02bcdd32825eb5ef069a",
        ],
    ),
    (
        "a PC without secure boot",
        include_bytes!("logs/pc-crypto-agile.gz"),
        [
            "1536de221b2187a421602cd81f43aa04496b0bd5a424d3b25b637a942080d0fa",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
            "3d6207f9a2c3fa1db729f06e71b09d2e7ca7c0c198f6c1410c2186bbe2cc1826",
        ],
    ),
];

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

fn value(hex: &str) -> [u8; 32] {
    let bytes: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn seven(log: &EventLog) -> Vec<&Event> {
    log.events.iter().filter(|event| event.pcr == 7).collect()
}

/// The contents of a variable in its event: after vendor, two lengths, and the name.
fn contents(event: &Event) -> Vec<u8> {
    let units = usize::try_from(u64::from_le_bytes(event.data[16..24].try_into().unwrap())).unwrap();
    event.data[32 + 2 * units..].to_vec()
}

/// The variables that were measured, which the firmware does not show any more.
fn measured(log: &EventLog) -> Measured {
    let events = seven(log);
    let of = |n: usize| contents(events[n]);
    Measured { secure_boot: of(0), pk: of(1), kek: of(2), db: of(3), dbx: of(4) }
}

#[test]
fn logs_lead_to_the_values_of_the_pcrs() {
    for (name, packed, values) in LOGS {
        let log = EventLog::parse(&unpacked(packed)).unwrap();
        for (pcr, expected) in [0, 2, 3, 7].into_iter().zip(values) {
            assert_eq!(log.replay(pcr), value(expected), "{name}: PCR {pcr}");
        }
        assert!(!log.has_dma_protection_disabled(), "{name}");
        let values: Values = values.map(value);
        let now = measured(&log);
        assert_eq!(pcr::explain(&log, &now, &values), Ok(()), "{name}");

        // Lists that were appended since, to both variables.
        let list = of_hashes(&[[4; 32]], Guid::GLOBAL);
        let (db, dbx) = ([&now.db[..], &list].concat(), [&now.dbx[..], &list].concat());
        let later = Measured { db, dbx, ..now.clone() };
        assert_eq!(pcr::explain(&log, &later, &values), Ok(()), "{name}");
        let lost = Measured { db: list, ..now.clone() };
        assert!(pcr::explain(&log, &lost, &values).unwrap_err().contains("variables"), "{name}");

        let mut other = now.clone();
        other.db.push(0);
        let why = pcr::explain(&log, &other, &values).unwrap_err();
        assert!(why.contains("variables"), "{name}: {why}");
        for (n, pcr) in ["PCR 0", "PCR 2", "PCR 3", "PCR 7"].into_iter().enumerate() {
            let mut other = values;
            other[n][31] ^= 1;
            assert!(pcr::explain(&log, &now, &other).unwrap_err().contains(pcr), "{name}");
        }
    }
}

#[test]
fn the_next_start_of_the_virtual_board_is_this_one_with_its_authorities() {
    let log = EventLog::parse(&unpacked(LOGS[0].1)).unwrap();
    let now = measured(&log);
    assert_eq!(now.secure_boot, [1]);
    let between = pcr::between(Some(&log));
    let authorities: Vec<[u8; 32]> =
        seven(&log).iter().skip(5 + between.len()).map(|event| event.digest).collect();
    assert_eq!(authorities.len(), 2, "loader and stage-2 kernel");
    assert_eq!(now.pcr7(&between, &authorities), value(LOGS[0].2[3]));
    // Without a log, the separator is taken for granted.
    assert_eq!(pcr::between(None), between);
}

/// What the entry of `db` in an event of an authority allows, after its owner.
fn allowed_by(authority: &Event) -> Program<'static> {
    let digest = contents(authority)[16..].try_into().unwrap();
    Program { digest, certificates: &[], is_aligned: true }
}

#[test]
fn the_authorities_of_drivers_come_before_those_of_the_programs() {
    let log = EventLog::parse(&unpacked(LOGS[0].1)).unwrap();
    let (now, between) = (measured(&log), pcr::between(Some(&log)));
    let own = seven(&log).split_off(5 + between.len());
    let (loader, kernel) = (allowed_by(own[0]), allowed_by(own[1]));
    let branches =
        |drivers: &[[u8; 32]], programs: &[&Program<'_>]| pcr::branches(&now, &between, drivers, programs);
    let without = now.pcr7(&between, &[]);
    let both = vec![without, value(LOGS[0].2[3])];
    assert_eq!(branches(&[], &[&loader, &kernel]), Some(both.clone()));
    assert_eq!(branches(&[[7; 32]], &[&loader, &kernel]), Some(both.clone()), "db does not allow the driver");
    assert_eq!(branches(&[loader.digest], &[&loader, &kernel]), Some(both), "each once");
    let of_loader = now.pcr7(&between, &[own[0].digest]);
    let driver_first = now.pcr7(&between, &[own[1].digest, own[0].digest]);
    assert_eq!(branches(&[kernel.digest], &[&loader]), Some(vec![without, of_loader, driver_first]));
    let unknown = Program { digest: [7; 32], ..loader };
    assert_eq!(branches(&[], &[&unknown]), None);
    // A start is predicted as this one was measured.
    let of_start = |log: Option<&EventLog>| pcr::of_start(log, &now, &[&loader, &kernel]);
    assert_eq!(of_start(Some(&log)), Some(vec![value(LOGS[0].2[3])]));
    let mut silent = log.clone();
    silent.events.retain(|event| event.kind != 0x8000_00e0);
    assert_eq!(of_start(Some(&silent)), Some(vec![without]), "this firmware measures no authority");
    assert_eq!(of_start(None), Some(vec![without, value(LOGS[0].2[3])]), "not known");
    let mut with_driver = log.clone();
    with_driver.events.push(Event { pcr: 2, kind: 0x8000_0004, digest: kernel.digest, data: Vec::new() });
    let first = now.pcr7(&between, &[own[1].digest, own[0].digest]);
    assert_eq!(of_start(Some(&with_driver)), Some(vec![first]), "the driver's authority is there already");
    assert_eq!(pcr::of_start(Some(&log), &now, &[&unknown]), None);
    // A loader that starts the kernel itself: the firmware measures nothing for the kernel.
    let mut of_loader_only = log.clone();
    of_loader_only.events.retain(|event| event.digest != own[1].digest);
    assert_eq!(of_start(Some(&of_loader_only)), Some(vec![value(LOGS[0].2[3]), of_loader]));
}

#[test]
fn a_driver_needs_an_authority_where_the_firmware_measures_them() {
    let log = EventLog::parse(&unpacked(LOGS[0].1)).unwrap();
    let now = measured(&log);
    let own = seven(&log).split_off(5 + pcr::between(Some(&log)).len());
    let explains = |kind: u32, digest: [u8; 32]| {
        let mut log = log.clone();
        log.events.push(Event { pcr: 2, kind, digest, data: Vec::new() });
        pcr::explains_authorities(&log, &now)
    };
    assert!(pcr::explains_authorities(&log, &now));
    assert!(explains(0x8000_0004, allowed_by(own[0]).digest));
    assert!(!explains(0x8000_0005, allowed_by(own[1]).digest), "another was first");
    assert!(!explains(0x8000_0004, [7; 32]), "db has no such entry");
    assert!(explains(6, [7; 32]), "no driver");
    let after = |kind: u32, digest: [u8; 32]| {
        let mut log = log.clone();
        log.events.push(Event { pcr: 7, kind, digest, data: Vec::new() });
        pcr::explains_authorities(&log, &now)
    };
    assert!(after(0x8000_00e0, own[0].digest), "again");
    assert!(!after(0x8000_00e0, [9; 32]), "a third program");
    assert!(!after(0x8000_00e4, [9; 32]), "another kind");
    let mut without = log.clone();
    without.events.retain(|event| event.kind != 0x8000_00e0);
    without.events.push(Event { pcr: 2, kind: 0x8000_0004, digest: [7; 32], data: Vec::new() });
    assert!(pcr::explains_authorities(&without, &now), "this firmware measures no authority");
}

#[test]
fn drivers_are_those_of_pcr_2() {
    let mut log = EventLog::default();
    for (name, packed, values) in LOGS {
        let (log, today) = (EventLog::parse(&unpacked(packed)).unwrap(), value(values[1]));
        for log in [Some(&log), None] {
            assert_eq!(pcr::pcr2_without_drivers(log, today), Some(today), "{name} has started none");
        }
    }
    assert_eq!(pcr::pcr2_without_drivers(None, [1; 32]), None);
    let mut add = |kind: u32, digest: u8| {
        log.events.push(Event { pcr: 2, kind, digest: [digest; 32], data: Vec::new() });
    };
    add(0x8000_0004, 2);
    add(0x8000_0004, 1);
    add(4, 9);
    add(0x8000_0004, 2);
    // EV_EFI_PLATFORM_FIRMWARE_BLOB is no program.
    add(0x8000_0008, 8);
    assert_eq!(pcr::drivers(&log), [[2; 32], [1; 32]]);
    let list = of_hashes(&pcr::drivers(&log), Guid::GLOBAL);
    assert_eq!(list.len(), 2 * 76);
    let without = pcr::pcr2_without_drivers(Some(&log), log.replay(2)).unwrap();
    log.events.retain(|event| event.kind != 0x8000_0004);
    assert_eq!(without, log.replay(2), "the events that are not of drivers");
}

#[test]
fn a_firmware_that_protects_no_memory_is_noticed() {
    let mut log = EventLog::parse(&unpacked(LOGS[3].1)).unwrap();
    let action = |pcr, data: &[u8]| Event { pcr, kind: 0x8000_0007, digest: [0; 32], data: data.to_vec() };
    log.events.push(action(4, b"DMA Protection Disabled"));
    assert!(!log.has_dma_protection_disabled());
    log.events.push(action(7, b"DMA Protection Disabled\0"));
    assert!(log.has_dma_protection_disabled());
}

#[test]
fn a_log_that_is_none_is_refused() {
    let whole = unpacked(LOGS[0].1);
    assert!(EventLog::parse(&[]).is_err());
    // One of SHA-1 only has no such first event.
    let mut old = whole.clone();
    old[32] = b'X';
    assert!(EventLog::parse(&old).unwrap_err().contains("Spec ID"));
    // The algorithms: SHA-256 is not among them.
    let place = whole.windows(4).position(|w| w == [0x0b, 0, 32, 0]).unwrap();
    let mut other = whole.clone();
    other[place] = 0x12;
    assert!(EventLog::parse(&other).unwrap_err().contains("SHA-256"));
    assert!(EventLog::parse(&whole[..whole.len() - 1]).is_err());
    assert!(EventLog::parse(&[&whole[..], &[0; 7]].concat()).is_err());
}

#[test]
fn what_is_damaged_takes_nothing_from_what_is_before() {
    let whole = unpacked(LOGS[0].1);
    let (log, values) = (EventLog::parse(&whole).unwrap(), LOGS[0].2.map(value));
    assert_eq!(log.damage(), None);
    assert_eq!(EventLog::beginning(&[]).damage(), Some("it is empty"));
    for len in (0..whole.len()).step_by(997) {
        let cut = EventLog::beginning(&whole[..len]);
        assert!(cut.damage().is_some() && log.events.starts_with(&cut.events), "{len}");
        assert!(pcr::leads_to(&cut, &values).is_err() || len > whole.len() / 2, "{len}");
    }
    // All that counts is there.
    let longer = EventLog::beginning(&[&whole[..], &[0xff; 40]].concat());
    assert_eq!((longer.events.len(), longer.damage().is_some()), (log.events.len(), true));
    assert_eq!(pcr::leads_to(&longer, &values), Ok(()));

    // The event that ends each start: before the damage, and in it.
    let action: Vec<u8> = [7, 0x8000_0007, 1u32]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .chain([0x0b, 0])
        .chain([0; 32])
        .chain(23u32.to_le_bytes())
        .chain(*b"DMA Protection Disabled")
        .collect();
    let with_action = [&whole[..], &action, &[0xff; 40]].concat();
    let read = EventLog::beginning(&with_action);
    assert_eq!(read.events.len(), log.events.len() + 1);
    assert!(read.has_dma_protection_disabled() && read.damage().is_some());
    let behind = EventLog::beginning(&[&whole[..], &[0xff; 40], &action].concat());
    assert_eq!(behind.events.len(), log.events.len());
    assert!(behind.has_dma_protection_disabled());
    assert!(!longer.has_dma_protection_disabled());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn damage_is_survived(damage in prop::collection::vec((0..12_000_usize, any::<u8>()), 1..5), len in 0..12_000_usize) {
        static WHOLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = WHOLE.get_or_init(|| unpacked(LOGS[0].1)).clone();
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(len.max(6000));
        if let Ok(log) = EventLog::parse(&bytes) {
            let data: usize = log.events.iter().map(|event| event.data.len()).sum();
            prop_assert!(data <= bytes.len());
            drop(pcr::between(Some(&log)));
        }
    }
}
