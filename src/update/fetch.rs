//! The image, from an archive or a registry, into the engine's store.

use super::preflight::{Ready, Release};
use super::scratch::Scratch;
use crate::config::paths::Paths;
use crate::engine::{self, Image};
use crate::error::Result;
use crate::job::Stage;
use crate::progress::Progress;

pub(super) fn fetch(paths: &Paths, ready: &Ready, progress: &dyn Progress) -> Result<Image> {
    let engine = &ready.engine;
    let mut bridge = Bridge { progress, stage: None, done: 0 };
    let image = match &ready.release {
        Release::Archive(archive) => {
            let scratch = Scratch::mount(paths, &ready.sysroot);
            let image = engine.load(archive, &mut |p| bridge.show(p));
            scratch.end(paths, &archive.path);
            image
        }
        Release::Reference(name) => engine.pull(name, &mut |p| bridge.show(p)),
    }?;
    bridge.finish();
    Ok(image)
}

struct Bridge<'a> {
    progress: &'a dyn Progress,
    stage: Option<Stage>,
    done: u64,
}

impl Bridge<'_> {
    fn show(&mut self, p: &engine::Progress) {
        if self.stage != Some(p.stage) {
            // While layers are unpacked, others may still be loading: show the later stage.
            if Some(p.stage) < self.stage {
                return;
            }
            self.finish();
            self.progress.begin(p.stage, p.total);
            self.stage = Some(p.stage);
            self.done = 0;
        }
        self.progress.expect(p.total);
        self.progress.advance(p.done.saturating_sub(self.done));
        self.done = self.done.max(p.done);
    }

    fn finish(&mut self) {
        if self.stage.take().is_some() {
            self.progress.finish();
        }
    }
}
