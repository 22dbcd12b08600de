//! The pool of a daemon, between its opened media and its session: emulation, the mount of the engine, warnings.

use crate::emulation::Emulated;
use crate::failure::{Failure, Outcome};
use crate::names::PoolFile;
use crate::plan::{Plan, warn};
use crate::pool::OpenPool;
use serde_json::{Value, json};
use std::sync::Arc;
use terrace_engine::{Engine, PolicyKind, PolicyThreshold, PoolMedia};
use terrace_format::address::ROOT_INO;
use terrace_format::superblock::Superblock;
use terrace_media::PmMedium;
use terrace_runtime::Clock;

/// A pool whose media are emulated where an option asks for it.
pub(crate) struct ReadyPool {
    media: PoolMedia,
    superblock: Superblock,
    names: Vec<PoolFile>,
    /// Warnings of the opened media, which the user has got.
    warnings: Vec<String>,
    /// Warnings that came later.
    further: Vec<String>,
    emulated: Vec<String>,
}

/// A pool whose engine is mounted.
pub(crate) struct MountedPool {
    /// The engine.
    pub(crate) fs: Arc<Engine>,
    /// The superblock.
    pub(crate) superblock: Superblock,
    /// The files by which the pool is found again.
    pub(crate) names: Vec<PoolFile>,
    /// The description of the PM medium, for status.
    pub(crate) medium: Value,
    /// All warnings of this mount, for status.
    pub(crate) warnings: Vec<String>,
    /// A sentence for each emulation, for status.
    pub(crate) emulated: Vec<String>,
}

impl ReadyPool {
    /// Puts the emulations over the media of a pool.
    ///
    /// # Errors
    /// A tier that the pool lacks.
    pub(crate) fn emulate(plan: &Plan, opened: OpenPool, clock: &Arc<dyn Clock>) -> Outcome<ReadyPool> {
        let OpenPool { media, superblock, warnings, names, .. } = opened;
        let Emulated { media, said: emulated, warnings: mut further } =
            plan.options.emulation.apply(media, &superblock, clock)?;
        further.extend(unused_threshold(plan, &superblock));
        Ok(ReadyPool { media, superblock, names, warnings, further, emulated })
    }

    /// Mounts the engine. Then the pool is known to be usable: a damaged copy of its superblock is rewritten, and its
    /// devices get the stamp of this mount.
    ///
    /// # Errors
    /// As of the engine's mount.
    pub(crate) fn mount(self, plan: &Plan, clock: &Arc<dyn Clock>) -> Outcome<MountedPool> {
        let ReadyPool { media, superblock, names, mut warnings, further, emulated } = self;
        let pm = Arc::clone(&media.pm);
        let medium = json!(media.pm.describe());
        warn(plan, &further);
        let fs = Engine::mount(media, superblock, plan.options.fs.clone(), Arc::clone(clock))
            .map_err(|error| Failure::at(&plan.pool, error))?;
        if !warnings.is_empty() && !plan.options.fs.read_only {
            warnings.extend(mend(&*pm, &superblock));
        }
        if let Err(error) = fs.stamp_devices() {
            let text = format!("a device does not say that it was used by this mount: {error}");
            tracing::warn!("{text}");
            warnings.push(text);
        }
        warnings.extend(further);
        Ok(MountedPool { fs, superblock, names, medium, warnings, emulated })
    }
}

/// Refuses a pool with an unreadable root directory: every path begins there, so a mount would only answer
/// EIO.
pub(crate) fn readable(plan: &Plan, fs: &Engine) -> Outcome<()> {
    let pool = plan.pool.display();
    fs.getattr(ROOT_INO).map(drop).map_err(|error| {
        let advice = format!("'terrace check {pool}' says more, and with --repair brings back what can be");
        Failure::at(&plan.pool, format!("its root directory cannot be read ({error}); {advice}"))
    })
}

/// The warning about a threshold that the policy does not use.
fn unused_threshold(plan: &Plan, superblock: &Superblock) -> Option<String> {
    let percent = plan.options.fs.threshold_percent?;
    let policy = plan.options.fs.policy.map_or(superblock.policy, PolicyKind::id);
    let instead = match terrace_engine::policy_threshold(policy)? {
        PolicyThreshold::Given => return None,
        PolicyThreshold::None => "",
        PolicyThreshold::Parameters => "; see threshold_min and threshold_max",
    };
    let name = terrace_engine::policy_name(policy)?;
    Some(format!(
        "mount option threshold={percent} is for policy=anticache alone, and the policy is {name}{instead}"
    ))
}

/// Rewrites a damaged copy of the superblock, now that the pool is known to be usable, and says so.
fn mend(pm: &dyn PmMedium, superblock: &Superblock) -> Option<String> {
    let said = match terrace_engine::mend_superblock(pm, superblock) {
        Ok(false) => return None,
        Ok(true) => "the damaged superblock copy was rewritten from the sound one".to_string(),
        Err(error) => format!("the damaged superblock copy cannot be rewritten: {error}"),
    };
    tracing::warn!("{said}");
    Some(said)
}
