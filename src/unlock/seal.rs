//! The passphrase in the TPM, with the lists that let the initramfs read it.
//!
//! At rest, one NV index holds the passphrase. With two, an attacker could redefine one of them with the same policy and their own passphrase, boot
//! their own disk with it, and read the other index. A spare index exists only during a change: the change writes the second list, then the spare,
//! then the index that the initramfs reads, removes the spare, and writes the list that the initramfs takes. At each instant one of the indices can be read
//! through one of the lists. A start that finds a spare [settles](settle) it.

use sha2::{Digest as _, Sha256};

use super::policies::{self, List, MOST_BRANCHES, Policies};
use crate::error::{Code, Error, Result};
use crate::measurements::event_log::extended;
use crate::measurements::{SELECTED, Values};
use crate::tpm::Tpm;
use crate::tpm::policy::{self, Digest};
use crate::tpm::store::{INDEX, SPARE, Secret};

/// How the passphrase was read.
#[derive(Debug)]
pub struct Sealed {
    pub secret: Secret,
    pub index: u32,
    pub list: List,
    /// The branch that this start meets, and its PCRs.
    pub met: Digest,
    pub values: Values,
    /// Another passphrase, which the spare gives to this start.
    rival: Option<Secret>,
    /// Whether there is a spare, readable or not.
    has_spare: bool,
    /// Whether the index of the initramfs and its list agree, and nothing is left of a change.
    pub is_whole: bool,
    /// The first index holds the list of the initramfs, which lacks this start: the hooks of a shell release have made them for the next one.
    pub is_for_another: bool,
}

/// [`read_any`], in a system that runs: its start has settled which passphrase is the right one.
pub fn read(tpm: &mut Tpm, policies: &Policies) -> Result<Sealed> {
    let sealed = read_any(tpm, policies)?;
    if sealed.rival.is_some() { Err(two_passphrases()) } else { Ok(sealed) }
}

/// An attack, or damage.
fn two_passphrases() -> Error {
    let message = format!(
        "the TPM has two passphrases, in its indices 0x{INDEX:x} and 0x{SPARE:x}, and not both open all encrypted partitions"
    );
    Error::new(Code::WouldNotUnlock, message).object("TPM")
}

/// Before meta-balena 6.4.0, a key of the TPM encrypted the passphrase, with a policy that had PCRs 0 to 3 before 5.2.3.
fn outdated() -> Error {
    let message = format!(
        "the passphrase of the disk is in the file {}, and not in the memory of the TPM: this device was encrypted by a release before 6.4.0",
        policies::OLDER
    );
    Error::new(Code::EncryptionOutdated, message).object(policies::OLDER)
}

/// Opens the disk at a start, and [settles](settle) a spare before any program of the disk can ask the TPM. `takes`: whether all encrypted partitions
/// take a passphrase. After an error the disk is closed; after two passphrases the TPM as well.
pub fn unlock<T>(
    tpm: &mut Tpm,
    policies: &Policies,
    takes: &dyn Fn(&Secret) -> Result<bool>,
    open: &dyn Fn(&Secret) -> Result<T>,
    close: &dyn Fn(&T),
) -> Result<(Sealed, T)> {
    let sealed = read_any(tpm, policies)?;
    if let Some(rival) = &sealed.rival
        && !(takes(&sealed.secret)? && takes(rival)?)
    {
        let e = two_passphrases();
        return Err(self::close(tpm).err().map_or(e.clone(), |also| e.and_also(&also.message())));
    }
    let opened = open(&sealed.secret)?;
    settle(tpm, &sealed).inspect_err(|_| close(&opened))?;
    Ok((sealed, opened))
}

/// Reads the passphrase through any index and list. An error says why the next start does not unlock.
pub fn read_any(tpm: &mut Tpm, policies: &Policies) -> Result<Sealed> {
    let values = tpm.pcrs()?;
    let met = policy::pcr(&values);
    let mut why = Vec::new();
    // A list that is damaged does not keep the other one from being used.
    let mut or_why = |list: Result<Option<List>>| {
        list.unwrap_or_else(|e| {
            why.push(e.message());
            None
        })
    };
    let current = or_why(policies.current().map(Some));
    let second = or_why(policies.second());
    let is_damaged = !why.is_empty();
    let is_empty = current.as_ref().is_none_or(|list| list.branches().is_empty());
    let alone = List::of(&[met], &List::default(), &values);
    let lists = [current.clone().filter(|_| !is_empty), second.clone(), Some(alone)];
    let lists: Vec<List> = lists.into_iter().flatten().collect();
    let mut has_spare = false;
    let mut found: Vec<(u32, List, Secret)> = Vec::new();
    for index in [INDEX, SPARE] {
        let Some(public) = tpm.public(index)? else {
            if index == INDEX {
                if policies.has_older_passphrase() {
                    return Err(outdated());
                }
                why.push(format!("the TPM has no index 0x{index:x}"));
            }
            continue;
        };
        has_spare |= index == SPARE;
        let fits = |list: &&List| list.branches().contains(&met) && public.holds(&list.policy());
        let Some(list) = lists.iter().find(fits) else {
            why.push(match lists.iter().find(|list| public.holds(&list.policy())) {
                Some(list) => {
                    let differences = differences(list, &values);
                    let is_said = why.iter().any(|text| text.ends_with(&differences));
                    let differences = if is_said { String::new() } else { differences };
                    format!(
                        "the policy of index 0x{index:x} does not have the state of this start{differences}"
                    )
                }
                None => format!("no list of policies is that of index 0x{index:x}"),
            });
            continue;
        };
        match tpm.unlock(index, &list.branches()) {
            Ok(secret) => found.push((index, list.clone(), secret)),
            Err(e) => why.push(e.message()),
        }
    }
    let mut found = found.into_iter();
    if let Some((index, list, secret)) = found.next() {
        let rival = found.next().map(|(_, _, rival)| rival).filter(|rival| rival.bytes() != secret.bytes());
        let expected = current.as_ref().filter(|_| !is_empty).unwrap_or(&list);
        let is_whole = !is_damaged
            && second.is_none()
            && !has_spare
            && tpm.public(INDEX)?.is_some_and(|public| public.holds(&expected.policy()));
        let is_for_another = index == SPARE && holds_current(tpm, policies)?;
        return Ok(Sealed { secret, index, list, met, values, rival, has_spare, is_whole, is_for_another });
    }
    for (pcr, value) in SELECTED.iter().zip(&values) {
        tracing::warn!("PCR {pcr} is {}", policies::start_of(value, 32));
    }
    let message = format!("the TPM does not give the passphrase of the disk: {}", why.join("; "));
    Err(Error::new(Code::WouldNotUnlock, message).object("TPM"))
}

/// What [`close`] extends into PCR 7.
#[must_use]
pub fn mark() -> Digest {
    Sha256::digest("copal: the recovery passphrase was asked for").into()
}

/// Until the next start, the TPM gives nothing. Before the recovery passphrase is asked for: an attacker who has changed the disk may answer with a passphrase
/// of their own, and start a system of their own.
pub fn close(tpm: &mut Tpm) -> Result<()> {
    let [.., before] = tpm.pcrs()?;
    tpm.extend(7, &mark())?;
    let [.., after] = tpm.pcrs()?;
    if after != extended(before, &mark()) {
        return Err(Error::new(Code::TpmUnusable, "the TPM does not change PCR 7").object("TPM"));
    }
    Ok(())
}

/// In words, where the names of the files say so.
fn differences(list: &List, values: &Values) -> String {
    let found = list.differences(values);
    let mut alike: Vec<(&[u8], Vec<String>)> = Vec::new();
    for (number, pcrs) in (1..).zip(&found).filter(|(_, pcrs)| !pcrs.is_empty()) {
        match alike.iter_mut().find(|(known, _)| known == pcrs) {
            Some((_, numbers)) => numbers.push(number.to_string()),
            None => alike.push((pcrs, vec![number.to_string()])),
        }
    }
    let said = alike.iter().map(|(pcrs, numbers)| {
        let pcrs: Vec<String> = pcrs.iter().map(|pcr| format!("PCR {pcr} ({})", measured_in(*pcr))).collect();
        format!("another {} in policy {}", pcrs.join(" and "), numbers.join(", "))
    });
    let said: Vec<String> = said.collect();
    if said.is_empty() { String::new() } else { format!(": {} of {}", said.join(", "), found.len()) }
}

/// TCG, PC Client Platform Firmware Profile, 3.3.4.
fn measured_in(pcr: u8) -> &'static str {
    match pcr {
        0 => "the firmware",
        2 => "drivers of plug-in cards",
        3 => "settings of plug-in cards",
        _ => "secure boot: keys, lists, loader, stage-2 kernel",
    }
}

/// Whether the scripts of an initramfs would read the first index, at some start.
fn holds_current(tpm: &mut Tpm, policies: &Policies) -> Result<bool> {
    let Ok(list) = policies.current() else { return Ok(false) };
    let policy = list.policy();
    Ok(!list.branches().is_empty() && tpm.public(INDEX)?.is_some_and(|main| main.holds(&policy)))
}

/// At a start, once the disk is open: leaves the passphrase that has opened it in one index, without a write to the partition. What is in the other
/// one may be the passphrase of this device, while the disk is an attacker's: it is gone before any program of the disk runs.
///
/// # Errors
/// The other index is still there. Nothing of the disk may start.
pub(super) fn settle(tpm: &mut Tpm, sealed: &Sealed) -> Result<()> {
    if sealed.index == INDEX {
        return if sealed.has_spare { tpm.remove(SPARE) } else { Ok(()) };
    }
    tpm.remove(INDEX)?;
    // The next start tries again: in lockout, the TPM defines an index and does not write it.
    let done = store(tpm, INDEX, &sealed.list, &sealed.secret).and_then(|()| tpm.remove(SPARE));
    if let Err(e) = done {
        tracing::warn!("the passphrase stays in index 0x{SPARE:x}: {}", e.message());
    }
    Ok(())
}

/// After [`settle`]: writes the policy list that the initramfs reads, to match its index, and removes the second list.
pub fn tidy(policies: &Policies, sealed: &Sealed) -> Result<()> {
    policies.write_current(&sealed.list)?;
    policies.remove_second()
}

/// Completes a change that was cut off. What is whole is not written, nor what is for another start: [`seal`] has to keep that one.
pub fn repair(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed) -> Result<()> {
    if sealed.is_whole || sealed.is_for_another {
        return Ok(());
    }
    take_back(tpm, policies, sealed)
}

/// Where the first index is for another start, takes it back: for when that start does not come. This start is readable at each instant, through the
/// spare index and the second list.
pub fn take_back(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed) -> Result<()> {
    store(tpm, INDEX, &sealed.list, &sealed.secret)?;
    finish(tpm, policies, &sealed.list)
}

/// Makes the spare index and the second list, through which this start is unlocked after the hooks of a shell release have written the first ones for
/// another. Only until [`end_aside`].
pub fn keep_aside(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed) -> Result<()> {
    repair(tpm, policies, sealed)?;
    if !sealed.is_for_another {
        store(tpm, SPARE, &sealed.list, &sealed.secret)?;
    }
    policies.write_second(&sealed.list)
}

/// After the hooks of a shell release: removes what [`keep_aside`] has made. From then on only the start that the hooks have sealed for is unlocked.
///
/// # Errors
/// They have sealed for no start: nothing is removed.
pub fn end_aside(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed) -> Result<()> {
    if !sealed.has_spare {
        return policies.remove_second();
    }
    if sealed.index == INDEX {
        return repair(tpm, policies, sealed);
    }
    let list = policies.current()?;
    let is_sealed = tpm.public(INDEX)?.is_some_and(|public| {
        // Without a list, the scripts take the state of the start alone.
        if list.branches().is_empty() { public.is_written() } else { public.holds(&list.policy()) }
    });
    if !is_sealed {
        let message =
            format!("the hooks of the release have left no passphrase for its start in index 0x{INDEX:x}");
        return Err(Error::new(Code::WouldNotUnlock, message).object("TPM"));
    }
    tpm.remove(SPARE)?;
    policies.remove_second()
}

/// Makes the passphrase readable in the states of these branches and in no other. The state of this start must be one of them: what was
/// written is read back through it. What is so already is not written.
pub fn seal(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed, branches: &[Digest]) -> Result<()> {
    // Otherwise the first index and its list stay whole until the spare one has the new list.
    repair(tpm, policies, sealed)?;
    let list = List::of(branches, &sealed.list, &sealed.values);
    if !list.branches().contains(&sealed.met) || list.branches().len() > MOST_BRANCHES {
        let message = "the policy of the encrypted disk cannot be changed: it has too many branches, or lacks the state of this start";
        return Err(Error::new(Code::WouldNotUnlock, message).object("TPM"));
    }
    if list == sealed.list && !sealed.is_for_another {
        return Ok(());
    }
    change(tpm, policies, &list, &sealed.secret)
}

/// The index that can be read now is the last that is written, unless it has this policy already.
fn change(tpm: &mut Tpm, policies: &Policies, list: &List, secret: &Secret) -> Result<()> {
    policies.write_second(list)?;
    store(tpm, SPARE, list, secret)?;
    store(tpm, INDEX, list, secret)?;
    finish(tpm, policies, list)
}

/// Once the first index was read back for this list: the spare goes at once, for `copal unlock` finds the second list. Where it does not go, the scripts get
/// their list all the same.
fn finish(tpm: &mut Tpm, policies: &Policies, list: &List) -> Result<()> {
    let removed = tpm.remove(SPARE);
    policies.write_current(list)?;
    removed?;
    policies.remove_second()
}

/// Seals a new passphrase, which all partitions already accept. Reads it back if this start has a policy branch; a start from an installation medium
/// has none. Removes the spare index and does not use it: after a power cut, the recovery passphrase opens the disk.
pub fn replace(tpm: &mut Tpm, policies: &Policies, branches: &[Digest], secret: &Secret) -> Result<()> {
    let values = tpm.pcrs()?;
    // One that cannot be read has no names to keep.
    let list = List::of(branches, &policies.current().unwrap_or_default(), &values);
    policies.write_second(&list)?;
    tpm.remove(SPARE)?;
    if branches.contains(&policy::pcr(&values)) {
        store(tpm, INDEX, &list, secret)?;
    } else {
        tpm.store(INDEX, &list.policy(), secret)?;
    }
    policies.write_current(&list)?;
    policies.remove_second()
}

/// Once more after a failure: an index that is gone cannot be read by the next start.
fn store(tpm: &mut Tpm, index: u32, list: &List, secret: &Secret) -> Result<()> {
    let policy = list.policy();
    if is_readable(tpm, index, list, secret)? {
        return Ok(());
    }
    if let Err(e) = tpm.store(index, &policy, secret) {
        tracing::warn!("{}; trying again", e.message());
        tpm.store(index, &policy, secret)?;
    }
    if is_readable(tpm, index, list, secret)? {
        return Ok(());
    }
    let message = format!("the TPM does not give back what was written to its index 0x{index:x}");
    Err(Error::new(Code::WouldNotUnlock, message).object("TPM"))
}

fn is_readable(tpm: &mut Tpm, index: u32, list: &List, secret: &Secret) -> Result<bool> {
    match tpm.public(index)? {
        Some(public) if public.holds(&list.policy()) => {
            Ok(tpm.unlock(index, &list.branches())?.bytes() == secret.bytes())
        }
        _ => Ok(false),
    }
}
