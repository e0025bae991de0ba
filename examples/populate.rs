//! Populates a boot partition as the flasher does, so that a test can do it in a guest and take its power away.
//!
//! `populate CONF MEDIUM CONFIG_JSON NODE POINT [sweep]`

use std::error::Error;
use std::ffi::OsStr;
use std::path::PathBuf;

use copal::boot_files::install::{BootPartition, Contents, Destination, Install, put};
use copal::config::flasher_conf::FlasherConf;
use copal::sys::file;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
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
