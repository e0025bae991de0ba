use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use super::{Request, Source};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

const USAGE: &str = "hostapp-update (-f FILE | -i IMAGE) [-r] [-n] [-x] [--force] [--no-job]";

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    file: Option<OsString>,
    image: Option<OsString>,
    reboot: bool,
    no_hooks: bool,
    no_recovery: bool,
    force: bool,
    no_job: bool,
}

/// The update, and whether the daemon may run it.
pub fn asked(args: &[OsString]) -> Result<(Request, bool)> {
    let asked = Arguments::parse(args)?;
    let request = Request {
        paths: Paths::default(),
        program: "hostapp-update".to_owned(),
        source: asked.source()?,
        hooks: !asked.no_hooks,
        recover: !asked.no_recovery,
        reboot: asked.reboot,
        force: asked.force,
    };
    Ok((request, !asked.no_job))
}

impl Arguments {
    /// As `getopts f:i:rnx` of the shell: options may be joined, a value may follow its option directly, and the first other argument
    /// ends them. Long names are new.
    fn parse(args: &[OsString]) -> Result<Arguments> {
        let mut asked = Arguments::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" {
                break;
            } else if let Some(long) = bytes.strip_prefix(b"--") {
                asked.long(long, &mut args)?;
            } else if let Some(short) = bytes.strip_prefix(b"-").filter(|s| !s.is_empty()) {
                asked.short(short, &mut args)?;
            } else {
                tracing::warn!("ignoring {} and all arguments after it", arg.to_string_lossy());
                break;
            }
        }
        Ok(asked)
    }

    fn short<'a>(&mut self, mut flags: &[u8], rest: &mut impl Iterator<Item = &'a OsString>) -> Result<()> {
        while let Some((&flag, following)) = flags.split_first() {
            flags = following;
            match flag {
                b'r' => self.reboot = true,
                b'n' => self.no_hooks = true,
                b'x' => self.no_recovery = true,
                b'f' | b'i' => {
                    let own = (!following.is_empty()).then(|| OsString::from_vec(following.to_vec()));
                    let value = own.or_else(|| rest.next().cloned());
                    let value =
                        value.ok_or_else(|| usage(&format!("-{} needs a value", char::from(flag))))?;
                    *(if flag == b'f' { &mut self.file } else { &mut self.image }) = Some(value);
                    return Ok(());
                }
                other => return Err(usage(&format!("unknown option -{}", char::from(other)))),
            }
        }
        Ok(())
    }

    fn long<'a>(&mut self, text: &[u8], rest: &mut impl Iterator<Item = &'a OsString>) -> Result<()> {
        let mut parts = text.splitn(2, |&b| b == b'=');
        let name = parts.next().unwrap_or_default();
        let value = parts.next().map(|v| OsStr::from_bytes(v).to_owned());
        let shown = format!("--{}", String::from_utf8_lossy(name));
        let flag = match name {
            b"file" | b"image" => {
                let value = value.or_else(|| rest.next().cloned());
                let value = value.ok_or_else(|| usage(&format!("{shown} needs a value")))?;
                *(if name == b"file" { &mut self.file } else { &mut self.image }) = Some(value);
                return Ok(());
            }
            b"reboot" => &mut self.reboot,
            b"no-hooks" => &mut self.no_hooks,
            b"no-recovery" => &mut self.no_recovery,
            b"force" => &mut self.force,
            b"no-job" => &mut self.no_job,
            _ => return Err(usage(&format!("unknown option {shown}"))),
        };
        *flag = true;
        if value.is_some() { Err(usage(&format!("{shown} takes no value"))) } else { Ok(()) }
    }

    fn source(&self) -> Result<Source> {
        let given = |v: &Option<OsString>| v.clone().filter(|v| !v.is_empty());
        match (given(&self.file), given(&self.image)) {
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
}

fn usage(why: &str) -> Error {
    Error::new(Code::Usage, format!("cannot update: {why}")).with_hint(format!("call it as {USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Arguments::parse(&args)
    }

    #[test]
    fn as_getopts_understood_them() {
        let image = || Arguments { image: Some("a:1".into()), ..Arguments::default() };
        assert_eq!(parse("-i a:1").unwrap(), image());
        assert_eq!(parse("-ia:1").unwrap(), image());
        assert_eq!(parse("-i a:0 -i a:1").unwrap(), image());
        assert_eq!(parse("--image=a:1").unwrap(), image());
        assert_eq!(parse("--image a:1").unwrap(), image());
        let all = Arguments { reboot: true, no_hooks: true, no_recovery: true, ..image() };
        assert_eq!(parse("-rnx -i a:1").unwrap(), all);
        assert_eq!(parse("-rxni a:1").unwrap(), all);
        assert_eq!(parse("--reboot --no-hooks --no-recovery -ia:1").unwrap(), all);
        assert_eq!(parse("-i a:1 x -r").unwrap(), image());
        assert_eq!(parse("-i a:1 -- -r").unwrap(), image());
        // A value may look like an option.
        assert_eq!(parse("-f -r").unwrap(), Arguments { file: Some("-r".into()), ..Arguments::default() });
        assert!(parse("-i a:1 --force").unwrap().force);
        assert!(parse("-i a:1 --no-job").unwrap().no_job);
    }

    #[test]
    fn wrong_ones_are_refused() {
        for line in ["-z", "-rz", "-i", "-f", "--image", "--what", "--reboot=1", "--no-hooks=x"] {
            let e = parse(line).unwrap_err();
            assert_eq!(e.code(), Code::Usage, "{line}");
            assert!(e.hint().contains("-f FILE"), "{e}");
        }
        for line in ["", "-r", "--image=", "--file="] {
            assert_eq!(parse(line).unwrap().source().unwrap_err().code(), Code::Usage, "{line}");
        }
    }

    #[test]
    fn the_file_counts_where_both_are_given() {
        assert_eq!(parse("-i a -f /x/y").unwrap().source().unwrap(), Source::File("/x/y".into()));
        assert_eq!(parse("-i a").unwrap().source().unwrap(), Source::Reference("a".into()));
        let Source::File(path) = parse("-f y").unwrap().source().unwrap() else { panic!() };
        assert!(path.is_absolute() && path.ends_with("y"));
    }
}
