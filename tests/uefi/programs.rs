//! The digest of a program, beside that of efitools.

use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::entries;
use proptest::prelude::*;

use crate::kit::prepared::part;
use crate::tools::Tools;

/// By efitools, which pad a program to a multiple of eight bytes.
fn by_efitools(tools: &Tools, program: &[u8]) -> Vec<u8> {
    tools.run("hash-to-efi-sig-list", &[&tools.put("program.efi", program), &tools.at("program.esl")]);
    let list = tools.get("program.esl");
    entries(&list).unwrap()[0].data().to_vec()
}

#[test]
fn real_programs_have_the_digest_that_efitools_find() {
    let test = "real_programs_have_the_digest_that_efitools_find";
    let Some(tools) = Tools::new(test) else { return };
    let stub = std::fs::read(tools.tree().join("stub.efi")).unwrap();
    // Signed by Debian.
    let kernel = std::fs::read(part("kernel").unwrap().join("vmlinuz")).unwrap();
    for (name, file) in [("stub", &stub), ("kernel", &kernel)] {
        let mut padded = file.clone();
        padded.resize(file.len().next_multiple_of(8), 0);
        let program = Program::parse(&padded).unwrap();
        assert!(program.is_aligned);
        assert_eq!(program.digest.to_vec(), by_efitools(&tools, &padded), "{name}");
        assert_eq!(program.certificates.is_empty(), name == "stub", "{name}");
    }
    let mut longer = stub.clone();
    longer.resize(stub.len().next_multiple_of(8) + 3, 7);
    let odd = Program::parse(&longer).unwrap();
    assert!(!odd.is_aligned);
    assert_ne!(odd.digest.to_vec(), by_efitools(&tools, &longer), "padding makes another digest");
}

#[test]
fn what_a_signature_changes_does_not_count_and_all_else_does() {
    let Some(tools) = Tools::new("what_a_signature_changes_does_not_count_and_all_else_does") else { return };
    let mut stub = std::fs::read(tools.tree().join("stub.efi")).unwrap();
    stub.resize(stub.len().next_multiple_of(8), 0);
    let digest = |file: &[u8]| Program::parse(file).map(|program| program.digest);
    let own = digest(&stub).unwrap();
    let pe = usize::try_from(u32::from_le_bytes(stub[0x3c..0x40].try_into().unwrap())).unwrap();
    let optional = pe + 24;
    let mut checksum = stub.clone();
    checksum[optional + 64] ^= 0xff;
    assert_eq!(digest(&checksum), Some(own));
    // A table of certificates at the end, in the fifth directory of PE32+.
    let mut signed = stub.clone();
    let directory = optional + 112 + 4 * 8;
    signed[directory..directory + 4].copy_from_slice(&u32::try_from(stub.len()).unwrap().to_le_bytes());
    signed[directory + 4..directory + 8].copy_from_slice(&16u32.to_le_bytes());
    signed.extend([0x55; 16]);
    let program = Program::parse(&signed).unwrap();
    assert_eq!(program.digest, own);
    assert_eq!(program.certificates, [0x55; 16]);
    for at in [2, pe + 4, optional + 16, optional + 68, 0x400, stub.len() / 2, stub.len() - 1] {
        let mut other = stub.clone();
        other[at] ^= 1;
        assert_ne!(digest(&other), Some(own), "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// A header of a program, and damage in all that leads through it.
    #[test]
    fn damage_is_survived(damage in prop::collection::vec((0..420_usize, any::<u8>()), 0..8), len in 0..700_usize) {
        let mut file = vec![0; 700];
        file[..2].copy_from_slice(b"MZ");
        file[0x3c] = 0x40;
        file[0x40..0x44].copy_from_slice(b"PE\0\0");
        file[0x46] = 2;
        file[0x54..0x56].copy_from_slice(&240u16.to_le_bytes());
        file[0x58..0x5a].copy_from_slice(&0x20bu16.to_le_bytes());
        file[0x58 + 60] = 200;
        file[0x58 + 108] = 16;
        for (at, value) in damage {
            file[at] = value;
        }
        file.truncate(len);
        if let Some(program) = Program::parse(&file) {
            prop_assert!(program.certificates.len() <= file.len());
        }
    }
}
