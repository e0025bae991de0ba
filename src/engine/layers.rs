//! Adds up the progress of many layers.

use std::collections::HashMap;

use bollard::models::ProgressDetail;

use super::Progress;
use crate::job::Stage;

/// The engine takes 125; layers beyond this limit are not counted.
const MAX_LAYERS: usize = 4096;

/// Kept over repeated tries: a layer that is fetched again continues where it was.
#[derive(Debug, Default)]
pub(super) struct Layers {
    layers: HashMap<(u8, String), (u64, u64)>,
    /// Bytes done and bytes to do of all layers together, where the engine reports them.
    whole: (u64, u64),
}

impl Layers {
    pub(super) fn update(&mut self, stage: Stage, id: &str, detail: &ProgressDetail) -> Option<Progress> {
        let current = u64::try_from(detail.current?).ok()?;
        let total = detail.total.and_then(|t| u64::try_from(t).ok()).unwrap_or(0);
        let key = (stage as u8, id.to_owned());
        if self.layers.len() >= MAX_LAYERS && !self.layers.contains_key(&key) {
            return None;
        }
        let layer = self.layers.entry(key).or_default();
        *layer = (layer.0.max(current), layer.1.max(total));
        Some(self.sum(stage))
    }

    pub(super) fn complete(&mut self, stage: Stage, id: &str) -> Option<Progress> {
        let layer = self.layers.get_mut(&(stage as u8, id.to_owned()))?;
        layer.0 = layer.0.max(layer.1);
        Some(self.sum(stage))
    }

    /// For a total of all layers of this try. A later try fetches only layers that are not complete, so its total is the rest.
    pub(super) fn update_whole(&mut self, stage: Stage, detail: &ProgressDetail) -> Option<Progress> {
        let current = u64::try_from(detail.current?).ok()?;
        let rest = u64::try_from(detail.total?).ok()?.max(current);
        let (done, total) = &mut self.whole;
        *total = rest.max(*total);
        *done = (*total - rest + current).max(*done);
        Some(Progress { stage, done: *done, total: Some(*total) })
    }

    /// For a stage in which the engine takes one layer after the other: those before `id` are done.
    pub(super) fn complete_before(&mut self, stage: Stage, id: &str) {
        for ((_, layer), (done, total)) in self.layers.iter_mut().filter(|((s, _), _)| *s == stage as u8) {
            if layer != id {
                *done = (*done).max(*total);
            }
        }
    }

    pub(super) fn knows(&self, stage: Stage) -> bool {
        self.layers.keys().any(|(s, _)| *s == stage as u8)
    }

    fn sum(&self, stage: Stage) -> Progress {
        let layers = self.layers.iter().filter(|((s, _), _)| *s == stage as u8).map(|(_, l)| *l);
        let (done, total, known) = layers.fold((0u64, 0u64, true), |(done, total, known), l| {
            (done.saturating_add(l.0), total.saturating_add(l.1.max(l.0)), known && l.1 > 0)
        });
        Progress { stage, done, total: known.then_some(total) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn detail(current: i64, total: Option<i64>) -> ProgressDetail {
        ProgressDetail { current: Some(current), total }
    }

    #[test]
    fn layers_add_up_and_never_shrink() {
        let mut layers = Layers::default();
        let mut at = |id: &str, current, total| {
            let p = layers.update(Stage::Pull, id, &detail(current, total)).unwrap();
            (p.done, p.total)
        };
        assert_eq!(at("a", 10, Some(100)), (10, Some(100)));
        assert_eq!(at("b", 5, Some(50)), (15, Some(150)));
        assert_eq!(at("a", 0, Some(100)), (15, Some(150)), "fetched once more");
        assert_eq!(at("c", 3, None), (18, None), "one of unknown length");
        assert_eq!(at("c", 3, Some(2)), (18, Some(153)), "more than it has");
        assert_eq!(layers.complete(Stage::Pull, "a").unwrap().done, 108);
        assert_eq!(layers.complete(Stage::Pull, "never seen"), None);
        assert_eq!(
            layers.update(Stage::Unpack, "a", &detail(1, Some(2))).unwrap().done,
            1,
            "a stage of its own"
        );
        assert_eq!(layers.update(Stage::Pull, "a", &ProgressDetail::default()), None);
        assert_eq!(layers.update(Stage::Pull, "a", &detail(-1, None)), None);
    }
}
