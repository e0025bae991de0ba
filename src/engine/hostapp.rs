//! The container of a host OS.

use std::path::{Component, Path, PathBuf};

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig, MountPoint};
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions};

use super::failure::Failure;
use super::{Engine, Image, WORK};
use crate::error::{Code, Error, Result};

/// A runtime of the host OS's engine for containers that only hold a file system.
const RUNTIME: &str = "bare";

/// The volume with kernel and init, outside the layers, where the bootloader's kernel finds it.
const BOOT: &str = "/boot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostapp {
    pub id: String,
    pub boot: PathBuf,
}

impl Engine {
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
                format!("{what}: the engine does not report the path of its {BOOT}"),
            )),
        }
    }

    /// Returns the ID, and the engine's description.
    ///
    /// Names the image as the caller did, for `balena ps`. Another process may move or remove that name at any time, so the image of the
    /// container is compared; if it is not `image`, the container is created by the ID.
    pub(super) fn create(
        &self,
        image: &Image,
        body: &dyn Fn() -> ContainerCreateBody,
    ) -> Result<(String, ContainerInspectResponse), Failure> {
        match self.create_by(&image.reference, body()) {
            Ok((id, found)) if found.image.as_ref() == Some(&image.id) => return Ok((id, found)),
            Ok((id, _)) => {
                tracing::warn!("{} now names another image; using the ID instead", image.reference);
                self.remove_for_good(&id)?;
            }
            Err(e) if e.is_gone() => tracing::warn!("{}; using its ID instead", e.text),
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
                    tracing::warn!("cannot remove the container {id}: {}", left.text);
                }
                Err(e)
            }
        }
    }
}

fn boot_source(mount: MountPoint) -> Option<PathBuf> {
    let source = PathBuf::from(mount.source.filter(|_| mount.destination.as_deref() == Some(BOOT))?);
    let plain = |p: &Path| p.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    (source.is_absolute() && plain(&source)).then_some(source)
}
