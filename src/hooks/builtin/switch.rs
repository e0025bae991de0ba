use crate::boot_state::Backend;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::slot::{Root, Roots};
use crate::state::files::BootfilesRecord;

/// During an update the inactive root, otherwise the running one.
pub(super) fn root_to_select(context: &Context, facts: &Facts) -> Result<Root> {
    let roots = Roots::of(facts)?;
    if context.during_update { roots.inactive().cloned() } else { Ok(roots.active) }
}

/// Selects a root, on trial during an update, and reads the selection back. From then on the boot files belong to the release of that
/// root.
pub(super) fn select(context: &Context, backend: &dyn Backend, root: &Root) -> Result<()> {
    tracing::info!("selecting root {}, partition {}, in {}", root.slot, root.index, backend.file().display());
    if context.during_update && !backend.counts() {
        tracing::warn!("{} does not count boot attempts: it never falls back", backend.name());
    }
    backend.set(root, context.during_update)?;
    let found = backend.read()?;
    let on_trial = context.during_update && backend.counts();
    if !found.selects(root)
        || found.damage.is_some()
        || found.upgrade_available != on_trial
        || found.bootcount != 0
    {
        let file = backend.file().display();
        let text = match &found.damage {
            Some(damage) => format!("{file} does not hold the selection that was written to it: {damage}"),
            None => format!(
                "{file} does not hold the selection that was written to it: it selects {}, {}, with {} boot attempts",
                found.root,
                if found.upgrade_available { "on trial" } else { "not on trial" },
                found.bootcount
            ),
        };
        return Err(Error::new(Code::BootStateUnwritable, text).object(file));
    }
    if let Err(e) = BootfilesRecord::settle(&context.paths, root.slot) {
        // The next boot sees that the record names the running system, and does nothing.
        tracing::warn!("{e}");
    }
    tracing::info!("root {} is used from the next boot on", root.slot);
    Ok(())
}
