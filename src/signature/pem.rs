//! A public key in PEM (RFC 7468), as an owner has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::der::Der;
use super::{Certificate, PublicKey};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// The only key in a text. What is around it does not count. A private key is refused: it must not be where a public one is expected.
pub fn public_key(text: &str) -> Result<PublicKey, &'static str> {
    let mut parts = text.split(BEGIN).skip(1);
    let block = parts.next().ok_or("it is not a key in PEM: a line -----BEGIN …----- is missing")?;
    if text.contains("PRIVATE KEY-----") {
        return Err("it is a private key, and only the public one belongs there");
    }
    if parts.next().is_some() {
        return Err("it has more than one key");
    }
    let (label, body) = block.split_once(DASHES).ok_or("its first line has no end")?;
    let (body, rest) = body.split_once(END).ok_or("a line -----END …----- is missing")?;
    if rest.split_once(DASHES).is_none_or(|(end, _)| end != label) {
        return Err("its last line does not have the name of its first one");
    }
    let body: String = body.split_whitespace().collect();
    let der = STANDARD.decode(body).map_err(|_| "it is not base64 between its first and its last line")?;
    let key = match label {
        "PUBLIC KEY" => Der::of(&der).and_then(Der::public_key).map(|(key, _)| key),
        "RSA PUBLIC KEY" => Der::of(&der).and_then(Der::rsa_key),
        "CERTIFICATE" => Some(Certificate::of_der(&der).map(|certificate| certificate.key)),
        _ => return Err("it is neither a PUBLIC KEY, an RSA PUBLIC KEY nor a CERTIFICATE"),
    };
    key.ok_or("it is not an RSA key, or is damaged")?
}
