//! The arguments of `hostapp-update`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use crate::error::{Code, Error, Result};
use crate::job::{Source, UpdateSpec};

const CALL: &str =
    "hostapp-update (-f FILE | -i IMAGE) [-r] [-n] [-x] [--force] [--accept-loader-key] [--no-daemon]";

pub const HELP: &str = "\
Usage: hostapp-update (-f FILE | -i IMAGE) [options]

Installs a release of the host OS into the inactive slot, and selects it: the
new system boots next, on trial. `copal update` is the same with the exit codes
of copal; this program exits with 0, 1 or, for wrong arguments, 2.

  -f, --file FILE    an image archive, as `docker save` writes it
  -i, --image IMAGE  an image in a registry
  -r, --reboot       reboot afterwards, as soon as applications allow it
  -n, --no-hooks     run no hooks of the release: it is not selected
  -x, --no-recovery  when a hook fails, do not run the hooks of the running
                     system
      --force        update on trial, after a fall back, without a named
                     device tree, or if only a recovery slot would unlock
      --accept-loader-key
                     take a release whose loader has another key: a power cut
                     meanwhile leaves a device that does not start
      --no-daemon    run in this process, not as a job of systemd
      --help         print this
";

#[derive(Debug, PartialEq, Eq)]
pub enum Arguments {
    Help,
    /// The update, and whether it may run as a job.
    Update(UpdateSpec, bool),
}

/// Parses like `getopts f:i:rnx` of the shell: options may be joined, a value may follow its option directly, the last value counts, and the
/// first non-option argument ends the options. Long names are new.
pub fn parse(args: &[OsString]) -> Result<Arguments> {
    let mut parser = Parser {
        spec: UpdateSpec::new(Source::Reference(String::new())),
        as_job: true,
        help: false,
        file: None,
        image: None,
        rest: args.iter(),
    };
    while let Some(arg) = parser.rest.next() {
        let bytes = arg.as_bytes();
        if bytes == b"--" {
            break;
        } else if let Some(long) = bytes.strip_prefix(b"--") {
            parser.long(long)?;
        } else if let Some(short) = bytes.strip_prefix(b"-").filter(|s| !s.is_empty()) {
            parser.short(short)?;
        } else {
            tracing::warn!("ignoring {} and all arguments after it", arg.to_string_lossy());
            break;
        }
    }
    if parser.help {
        return Ok(Arguments::Help);
    }
    let source = source(parser.file, parser.image)?;
    Ok(Arguments::Update(UpdateSpec { source, ..parser.spec }, parser.as_job))
}

struct Parser<'a> {
    spec: UpdateSpec,
    as_job: bool,
    help: bool,
    file: Option<OsString>,
    image: Option<OsString>,
    rest: std::slice::Iter<'a, OsString>,
}

impl Parser<'_> {
    fn short(&mut self, mut flags: &[u8]) -> Result<()> {
        while let Some((&flag, following)) = flags.split_first() {
            flags = following;
            let shown = format!("-{}", char::from(flag));
            match flag {
                b'r' => self.spec.reboot = true,
                b'n' => self.spec.hooks = false,
                b'x' => self.spec.recover = false,
                b'f' | b'i' => {
                    let joined = (!following.is_empty()).then(|| OsString::from_vec(following.to_vec()));
                    let value = self.value(&shown, joined)?;
                    *(if flag == b'f' { &mut self.file } else { &mut self.image }) = Some(value);
                    return Ok(());
                }
                _ => return Err(usage(&format!("unknown option {shown}"))),
            }
        }
        Ok(())
    }

    fn long(&mut self, text: &[u8]) -> Result<()> {
        let mut parts = text.splitn(2, |&b| b == b'=');
        let name = parts.next().unwrap_or_default();
        let joined = parts.next().map(|v| OsStr::from_bytes(v).to_owned());
        let shown = format!("--{}", String::from_utf8_lossy(name));
        let has_value = joined.is_some();
        match name {
            b"file" => self.file = Some(self.value(&shown, joined)?),
            b"image" => self.image = Some(self.value(&shown, joined)?),
            b"reboot" | b"no-hooks" | b"no-recovery" | b"force" | b"accept-loader-key" | b"no-daemon"
            | b"help"
                if has_value =>
            {
                return Err(usage(&format!("{shown} takes no value")));
            }
            b"reboot" => self.spec.reboot = true,
            b"no-hooks" => self.spec.hooks = false,
            b"no-recovery" => self.spec.recover = false,
            b"force" => self.spec.force = true,
            b"accept-loader-key" => self.spec.accept_loader_key = true,
            b"no-daemon" => self.as_job = false,
            b"help" => self.help = true,
            _ => return Err(usage(&format!("unknown option {shown}"))),
        }
        Ok(())
    }

    fn value(&mut self, option: &str, joined: Option<OsString>) -> Result<OsString> {
        let value = joined.or_else(|| self.rest.next().cloned());
        value.ok_or_else(|| usage(&format!("{option} needs a value")))
    }
}

fn source(file: Option<OsString>, image: Option<OsString>) -> Result<Source> {
    let given = |value: Option<OsString>| value.filter(|v| !v.is_empty());
    match (given(file), given(image)) {
        (Some(file), image) => {
            if image.is_some() {
                tracing::warn!("-f and -i are both given; installing the file");
            }
            let path = PathBuf::from(file);
            Ok(Source::File(std::path::absolute(&path).unwrap_or(path)))
        }
        (None, Some(image)) => {
            let image = image.into_string().map_err(|_| usage("the image reference is not text"))?;
            Ok(Source::Reference(image))
        }
        (None, None) => Err(usage("-f or -i is needed")),
    }
}

fn usage(why: &str) -> Error {
    Error::new(Code::Usage, format!("cannot update: {why}")).with_hint(format!("call it as {CALL}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<(UpdateSpec, bool)> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&args)? {
            Arguments::Update(spec, as_job) => Ok((spec, as_job)),
            Arguments::Help => panic!("{line}"),
        }
    }

    fn spec(line: &str) -> UpdateSpec {
        parse_line(line).unwrap().0
    }

    #[test]
    fn as_getopts_understood_them() {
        let image = || UpdateSpec::new(Source::Reference("a:1".into()));
        assert_eq!(parse_line("-i a:1").unwrap(), (image(), true));
        assert_eq!(spec("-ia:1"), image());
        assert_eq!(spec("-i a:0 -i a:1"), image());
        assert_eq!(spec("--image=a:1"), image());
        assert_eq!(spec("--image a:1"), image());
        let all = UpdateSpec { reboot: true, hooks: false, recover: false, ..image() };
        assert_eq!(spec("-rnx -i a:1"), all);
        assert_eq!(spec("-rxni a:1"), all);
        assert_eq!(spec("--reboot --no-hooks --no-recovery -ia:1"), all);
        assert_eq!(spec("-i a:1 x -r"), image());
        assert_eq!(spec("-i a:1 -- -r"), image());
        // A value may look like an option.
        let Source::File(file) = spec("-f -r").source else { panic!() };
        assert!(file.ends_with("-r"));
        assert!(spec("-i a:1 --force").force);
        assert!(spec("-i a:1 --accept-loader-key").accept_loader_key);
        assert_eq!(parse_line("-i a:1 --no-daemon").unwrap(), (image(), false));
    }

    #[test]
    fn wrong_ones_are_refused() {
        for line in
            ["-z", "-rz", "-i", "-f", "--image", "--what", "--reboot=1", "--no-hooks=x", "-h", "--help=x"]
        {
            let e = parse_line(line).unwrap_err();
            assert_eq!(e.code(), Code::Usage, "{line}");
            assert!(e.hint().contains("-f FILE"), "{e}");
        }
        for line in ["", "-r", "--image=", "--file="] {
            assert_eq!(parse_line(line).unwrap_err().code(), Code::Usage, "{line}");
        }
    }

    #[test]
    fn the_file_counts_where_both_are_given() {
        assert_eq!(spec("-i a -f /x/y").source, Source::File("/x/y".into()));
        let Source::File(path) = spec("-f y").source else { panic!() };
        assert!(path.is_absolute() && path.ends_with("y"));
    }
}
