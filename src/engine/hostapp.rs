//! The container that holds a host OS.

use std::path::{Component, Path, PathBuf};

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig, MountPoint};
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions};

use super::failure::Failure;
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
        let body = || ContainerCreateBody {
            cmd: Some(vec!["/bin/sh".to_owned()]),
            volumes: Some(vec![BOOT.to_owned()]),
            host_config: Some(HostConfig { runtime: Some(RUNTIME.to_owned()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let (id, found) = self.create(image, &body).map_err(|e| e.during(&what))?;
        let mounts = found.mounts.unwrap_or_default();
        match mounts.into_iter().find_map(boot_source) {
            Some(boot) => Ok(Hostapp { id, boot }),
            None => Err(Error::new(
                Code::EngineFailed,
                format!("{what}: the engine does not say where its {BOOT} is"),
            )),
        }
    }

    /// Creates a container of `image`: its ID, and what the engine says of it.
    ///
    /// It names the image as the caller did, which is what `balena ps` shows. Another process may move that name to another image at any
    /// time, or take it away. So what the container was made from is compared, and where it is not `image`, the container is made by the ID.
    pub(super) fn create(
        &self,
        image: &Image,
        body: &dyn Fn() -> ContainerCreateBody,
    ) -> Result<(String, ContainerInspectResponse), Failure> {
        match self.create_by(&image.reference, body()) {
            Ok((id, found)) if found.image.as_ref() == Some(&image.id) => return Ok((id, found)),
            Ok((id, _)) => {
                tracing::warn!("{} names another image by now; its ID is used instead", image.reference);
                self.remove_for_good(&id)?;
            }
            Err(e) if e.is_gone() => tracing::warn!("{}; its ID is used instead", e.text),
            Err(e) => return Err(e),
        }
        self.create_by(&image.id, body())
    }

    fn create_by(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<(String, ContainerInspectResponse), Failure> {
        let body = ContainerCreateBody { image: Some(name.to_owned()), ..body };
        let id = self.within(WORK, self.docker.create_container(None::<CreateContainerOptions>, body))?.id;
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(Failure::garbled(format!("it calls the container {id:?}")));
        }
        let found = self.soon(self.docker.inspect_container(&id, None::<InspectContainerOptions>));
        match found {
            Ok(found) => Ok((id, found)),
            Err(e) => {
                if let Err(left) = self.remove_for_good(&id) {
                    tracing::warn!("the container {id} is left: {}", left.text);
                }
                Err(e)
            }
        }
    }
}

/// Where the volume is, if `mount` is that of `/boot`.
fn boot_source(mount: MountPoint) -> Option<PathBuf> {
    let source = PathBuf::from(mount.source.filter(|_| mount.destination.as_deref() == Some(BOOT))?);
    let plain = |p: &Path| p.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    (source.is_absolute() && plain(&source)).then_some(source)
}
