//! The signature of an image: `IMAGE.sig`, named without the suffix of a compression.
//!
//! Its maker signs the bare SHA-256 of the uncompressed image (`balenaos-img.sig` of meta-balena: `openssl pkeyutl -sign`, without the name of the digest).

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::companions::{read, signature_of};
use super::digest::Digest256;
use super::{Image, Surroundings};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::signature::{Certificate, MAX_BYTES, is_trusted};

/// Of a flasher medium's boot partition (meta-balena, `kernel-modules-sign`): it is for the kernel's modules, too.
const OF_MEDIUM: &str = "balena-keys/kmod.crt";

const KERNEL_KEYS: &str = "/proc/keys";

/// By whom an image must be signed.
#[derive(Debug, Clone)]
pub struct Signer {
    file: PathBuf,
    certificate: Certificate,
}

/// A signature that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signed {
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub certificate: PathBuf,
    /// SHA-1 of its key, by which the kernel names it.
    pub key: String,
}

impl Signer {
    /// The holder of this certificate, which the caller has decided to trust.
    pub fn named(file: &Path) -> Result<Signer> {
        let error = |what| {
            let file = file.display();
            Error::new(Code::CertificateInvalid, format!("cannot use the certificate {file}: {what}"))
                .object(file)
        };
        let bytes = read(file, Surroundings::Any, MAX_BYTES, Code::CertificateInvalid)?;
        let bytes = bytes.ok_or_else(|| error("it does not exist"))?;
        let certificate = Certificate::first_of(&bytes).map_err(error)?;
        Ok(Signer { file: file.to_owned(), certificate })
    }

    /// The one whose certificate is on the medium, if the running kernel was built with it. What is on the medium alone can be changed by any computer.
    pub fn of_medium(paths: &Paths) -> Result<Signer> {
        let signer = Signer::named(&paths.boot().join(OF_MEDIUM))?;
        let (file, keys) = (signer.file.display(), paths.at(KERNEL_KEYS));
        let error = |what| {
            Error::new(Code::CertificateUntrusted, format!("cannot use the certificate {file}: {what}"))
                .object(&file)
        };
        let keys = std::fs::read_to_string(&keys)
            .map_err(|e| error("the keys of the running kernel cannot be read").because(e))?;
        if is_trusted(&keys, &signer.certificate.key_id) {
            return Ok(signer);
        }
        let key = &signer.certificate.key_id;
        Err(error("the running kernel does not have its key, or not exactly once")
            .and_also(&format!("the key is {key}")))
    }

    /// Refuses an image, by the digest of its uncompressed bytes, that this signer has not signed.
    pub(crate) fn check(&self, image: &Image, digest: Digest256) -> Result<Signed> {
        let path = signature_of(&image.path);
        let key = &self.certificate.key;
        let error = |code, what: &str| {
            let (image, path) = (image.path.display(), path.display());
            Error::new(code, format!("the signature of {image} is not accepted: {path} {what}")).object(path)
        };
        let limit = key.signature_len() as u64;
        let signature = read(&path, image.surroundings, limit, Code::SignatureInvalid)?;
        let signature = signature.ok_or_else(|| error(Code::SignatureMissing, "does not exist"))?;
        if !key.has_signed(digest.as_bytes(), &signature) {
            let what = format!("is not the signature of {} over this image", self.file.display());
            return Err(error(Code::SignatureInvalid, &what));
        }
        Ok(Signed { certificate: self.file.clone(), key: self.certificate.key_id.clone() })
    }
}
