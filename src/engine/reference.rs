//! Image references, in the format of the registries' clients (distribution, `reference/reference.go`).

use std::fmt;

use crate::error::{Code, Error, Result};

/// For references without a registry.
pub const HUB: &str = "docker.io";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Everything before tag and digest, unchanged.
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// Format: `[registry[:port]/]path[:tag][@digest]`.
    pub fn parse(text: &str) -> Result<Reference> {
        let bad = |why: &str| {
            Error::new(Code::ImageUnknown, format!("{text:?} is not an image reference: {why}")).object(text)
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (rest, None),
        };
        let (host, path) = split_host(repository);
        if host.is_some_and(|h| !is_host(h)) {
            return Err(bad(
                "the registry's name has other characters than letters, digits, - and ., or its port is no number",
            ));
        }
        if repository.len() > 255 || !path.split('/').all(is_component) {
            return Err(bad(
                "lower-case letters, digits and single separators . _ - are allowed between slashes",
            ));
        }
        // Without a registry and a path, `sha256:…` would be a tag of the hub's image `sha256`.
        let is_hex = |text: &str| text.len() >= 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let is_algorithm = matches!(path, "sha256" | "sha384" | "sha512");
        if host.is_none() && (path.len() == 64 && is_hex(path) || is_algorithm && tag.is_some_and(is_hex)) {
            return Err(bad(
                "it is the ID of an image, which a registry does not know; name the image, and its digest after @",
            ));
        }
        if tag.is_some_and(|t| !is_tag(t)) {
            return Err(bad("the tag may have letters, digits, _ . and -, and at most 128 of them"));
        }
        if digest.is_some_and(|d| !is_digest(d)) {
            return Err(bad("the digest is an algorithm, a colon and hexadecimal digits, as sha256:0123…"));
        }
        Ok(Reference {
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    #[must_use]
    pub fn registry(&self) -> &str {
        match split_host(&self.repository).0 {
            Some("index.docker.io") | None => HUB,
            Some(host) => host,
        }
    }

    /// The API's tag: the digest if there is one, since it is more exact. Without either the API would fetch every tag.
    #[must_use]
    pub fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }
}

/// The name under which the engine finds the pulled image.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digest.is_some() { '@' } else { ':' };
        write!(f, "{}{sign}{}", self.repository, self.version())
    }
}

/// The first part is a registry only if it looks like a host: `a/b` is a path.
fn split_host(repository: &str) -> (Option<&str>, &str) {
    match repository.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        _ => (None, repository),
    }
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let plain = match name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
        Some(address) => !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => name.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        }),
    };
    plain && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

fn is_component(part: &str) -> bool {
    let simple = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(simple) && part.bytes().last().is_some_and(simple);
    let separators =
        part.split(|c: char| c.is_ascii() && u8::try_from(c).is_ok_and(simple)).filter(|s| !s.is_empty());
    let mut separators = separators.map(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'));
    ends && separators.all(|good| good)
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
            && algorithm.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && hex.len() >= 32
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn names_are_taken_apart() {
        let apart = |text: &str| {
            let r = Reference::parse(text).unwrap();
            (r.registry().to_owned(), r.repository().to_owned(), r.version().to_owned(), r.to_string())
        };
        let rows = [
            ("alpine", HUB, "alpine", "latest", "alpine:latest"),
            ("a/b:1", HUB, "a/b", "1", "a/b:1"),
            ("docker.io/a/b", HUB, "docker.io/a/b", "latest", "docker.io/a/b:latest"),
            ("index.docker.io/a/b", HUB, "index.docker.io/a/b", "latest", "index.docker.io/a/b:latest"),
            ("localhost/x", "localhost", "localhost/x", "latest", "localhost/x:latest"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000", "127.0.0.1:5000/x", "latest", "127.0.0.1:5000/x:latest"),
            ("[::1]:5000/x:v_1", "[::1]:5000", "[::1]:5000/x", "v_1", "[::1]:5000/x:v_1"),
            (
                "r.example/v2/0a1b--c__d:T-1",
                "r.example",
                "r.example/v2/0a1b--c__d",
                "T-1",
                "r.example/v2/0a1b--c__d:T-1",
            ),
        ];
        for (text, registry, repository, version, shown) in rows {
            let expected = (registry.to_owned(), repository.to_owned(), version.to_owned(), shown.to_owned());
            assert_eq!(apart(text), expected, "{text}");
        }
        let by_digest = format!("r.example:5000/a@{DIGEST}");
        assert_eq!(apart(&by_digest).2, DIGEST);
        assert_eq!(apart(&by_digest).3, by_digest);
        assert_eq!(
            apart(&format!("a:1@{DIGEST}")).3,
            format!("a@{DIGEST}"),
            "the digest says more than the tag"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(300);
        let (id, id_with_algorithm) = ("0".repeat(64), DIGEST);
        let bad = [
            "",
            ":",
            "@",
            "a:",
            "a@",
            "/a",
            "a/",
            "a//b",
            "A",
            "a/B",
            "a b",
            "a\n",
            "a:b:c",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "a?x=1",
            "a#b",
            "a%2f",
            "../a",
            "https://r.example/a",
            "r.example:/a",
            "r.example:x/a",
            "a@sha256:12",
            "a:.t",
            "ä",
            &long,
            &id,
            id_with_algorithm,
        ];
        for text in bad {
            let error = Reference::parse(text).unwrap_err();
            assert_eq!(error.code(), Code::ImageUnknown, "{text:?}");
        }
    }
}
