//! The container that holds a host OS.

use std::path::{Component, Path, PathBuf};

use bollard::models::{ContainerCreateBody, HostConfig, MountPoint};
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions};

use super::{Engine, Image, WORK};
use crate::error::{Code, Error, Result};

/// The runtime of the host OS's engine for containers that only hold a file system: there is nothing to be started.
const RUNTIME: &str = "bare";

/// The volume that holds kernel and init of the host OS, outside the layers, where the bootloader's kernel finds it.
const BOOT: &str = "/boot";

/// A host OS as the engine keeps it: a container that is never started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostapp {
    /// The container's ID.
    pub id: String,
    /// Where the engine keeps its volume `/boot`.
    pub boot: PathBuf,
}

impl Engine {
    /// Creates the container of the host OS `image`.
    ///
    /// # Errors
    /// The engine refuses, or does not say where `/boot` is.
    pub fn create_hostapp(&self, image: &Image) -> Result<Hostapp> {
        let what = format!("cannot create a container from the image {}", image.reference);
        let body = ContainerCreateBody {
            image: Some(image.id.clone()),
            cmd: Some(vec!["/bin/sh".to_owned()]),
            volumes: Some(vec![BOOT.to_owned()]),
            host_config: Some(HostConfig { runtime: Some(RUNTIME.to_owned()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let id = self.create(body).map_err(|e| e.during(&what))?;
        let found = self.docker.inspect_container(&id, None::<InspectContainerOptions>);
        let mounts = self.soon(found).map_err(|e| e.during(&what))?.mounts.unwrap_or_default();
        match mounts.into_iter().find_map(boot_source) {
            Some(boot) => Ok(Hostapp { id, boot }),
            None => Err(Error::new(
                Code::EngineFailed,
                format!("{what}: the engine does not say where its {BOOT} is"),
            )),
        }
    }

    /// Creates a container and returns its ID.
    pub(super) fn create(&self, body: ContainerCreateBody) -> Result<String, super::failure::Failure> {
        let id = self.within(WORK, self.docker.create_container(None::<CreateContainerOptions>, body))?.id;
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(super::failure::Failure::garbled(format!("it calls the container {id:?}")));
        }
        Ok(id)
    }
}

/// Where the volume is, if `mount` is that of `/boot`.
fn boot_source(mount: MountPoint) -> Option<PathBuf> {
    let source = PathBuf::from(mount.source.filter(|_| mount.destination.as_deref() == Some(BOOT))?);
    let plain = |p: &Path| p.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    (source.is_absolute() && plain(&source)).then_some(source)
}
