//! Which certificates the running kernel trusts: those that it was built with.

/// In `/proc/keys` (`proc_keys(5)`): serial number, flags, uses, time, permissions, user, group, type, description.
const FLAGS: usize = 1;
const TYPE: usize = 7;

/// The type's name is cut to nine letters.
const ASYMMETRIC: &str = "asymmetri";

/// Of the keys of balenaOS, not of another signer whom the kernel may trust too.
const OWNER: &str = "balenaOS";

/// Instantiated, and neither revoked, dead nor about to go.
const VALID: &str = "I------";

/// Whether exactly one key of `keys`, the text of `/proc/keys`, is the one with this identifier (of a certificate). Columns are compared, because the rest of a
/// line can contain any text.
#[must_use]
pub fn is_trusted(keys: &str, key_id: &str) -> bool {
    let is_it = |line: &&str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (first, description) = columns.split_at_checked(TYPE + 1).unwrap_or((&columns, &[]));
        let has_id = description.iter().any(|word| word.trim_end_matches(':') == key_id);
        first.get(FLAGS) == Some(&VALID)
            && first.get(TYPE) == Some(&ASYMMETRIC)
            && description.iter().any(|word| word.contains(OWNER))
            && has_id
    };
    keys.lines().filter(is_it).count() == 1
}
