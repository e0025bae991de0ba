//! Populates a boot partition as the flasher does, so that a test can do it in a guest and take its power away.
//!
//! `populate CONF MEDIUM CONFIG_JSON NODE POINT [sweep]`
//!
//! `populate together FROM NODE POINT` replaces the files of the top folder that FROM has, all at once.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;

use copal::boot_files::install::{BootPartition, Contents, Destination, Install, put};
use copal::config::flasher_conf::FlasherConf;
use copal::sys::file::{self, Content, Folder};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from).peekable();
    if args.next_if(|first| first.as_os_str() == "together").is_some() {
        return together(&args.collect::<Vec<_>>());
    }
    let mut next = || args.next().ok_or("usage: populate CONF MEDIUM CONFIG_JSON NODE POINT [sweep]");
    let (conf, medium, config, node, point) = (next()?, next()?, next()?, next()?, next()?);
    let only_sweep = args.next().is_some();
    let partition = BootPartition::mount(&node, &point)?;
    let dest = Destination::open(partition.point(), None)?;
    if only_sweep {
        for (name, fate) in file::sweep(dest.root())? {
            println!("{} {fate:?}", name.display());
        }
    } else {
        let contents = Contents::gather(&medium, &FlasherConf::load(&conf)?, &config, Install::Plain)?;
        contents.check(&dest, 0)?;
        println!("{:?}", contents.deploy(&dest)?);
        contents.deploy_config_json(&dest)?;
        put(&dest, OsStr::new("flash-receipt.json"), b"{\"version\":1}\n")?;
    }
    drop(dest);
    partition.unmount()?;
    Ok(())
}

fn together(args: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    let [from, node, point] = args else { return Err("usage: populate together FROM NODE POINT".into()) };
    let partition = BootPartition::mount(node, point)?;
    let entries = std::fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    let files = entries.iter().map(|entry| Ok((entry.file_name(), File::open(entry.path())?)));
    let files: Vec<(OsString, File)> = files.collect::<std::io::Result<_>>()?;
    let contents: Vec<_> = files.iter().map(|(name, file)| (name.as_os_str(), Content::File(file))).collect();
    let folder = Folder::open(partition.point())?;
    println!("{:?}", file::replace_together(&folder, &contents)?);
    drop(folder);
    partition.unmount()?;
    Ok(())
}
