//! The slow device of Terrace and of every peer: a plain file of the disk, with or without the emulated
//! latency and bandwidth of a class (`terrace bench device`). Also loop devices over files.

use super::Site;
use super::class::{self, Class};
use super::dirty;
use super::teardown::{Held, Resource, Teardown};
use crate::affinity;
use crate::failure::Outcome;
use crate::process::{Server, run};
use crate::scratch::Scratch;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A file that serves as device; deleted when dropped.
pub struct Device {
    pub path: PathBuf,
    // In this order: the server before its backing file.
    server: Option<Served>,
    _file: Held,
}

impl Device {
    /// The process that emulates the device.
    pub fn process(&self) -> Option<u32> {
        self.server.as_ref().and_then(Served::process)
    }
}

/// A server in a process of its own, and its mount; killed and unmounted when dropped.
pub struct Served {
    server: Option<Server>,
    held: Vec<Held>,
    teardown: Arc<Teardown>,
}

impl Served {
    /// The process of the server.
    pub fn process(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }

    fn resources(&self, mount: &Path) -> Vec<Resource> {
        let process = self.server.as_ref().map(|server| Resource::Process(server.pid()));
        [Resource::Mount(mount.to_path_buf())].into_iter().chain(process).collect()
    }

    /// Unmounts in order and waits for the end of the process.
    pub fn stop(mut self, scratch: &Scratch) -> Outcome<()> {
        let teardown = self.teardown.clone();
        let _step = teardown.step();
        self.held.drain(..).for_each(Held::gone);
        match self.server.take() {
            Some(server) => server.stop(scratch),
            None => Ok(()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let teardown = self.teardown.clone();
        let _step = teardown.step();
        // Before the wait: afterwards the process id may belong to another process.
        self.held.drain(..).for_each(Held::gone);
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }
}

impl Site {
    /// A fully allocated file on the disk or in memory, of the class of the site.
    pub fn device(&self, name: &str, bytes: u64) -> Outcome<Device> {
        self.device_of(&self.class, name, bytes)
    }

    /// The same of a class.
    pub fn device_of(&self, class: &Class, name: &str, bytes: u64) -> Outcome<Device> {
        let place = if self.device_memory { &self.scratch.memory } else { &self.scratch.disk };
        let backing = place.join(format!("{name}.device"));
        let file = match self.writes_whole {
            true => self.written(&backing, bytes)?,
            false => self.allocated(&backing, bytes)?,
        };
        let Class::Emulated(class) = class else {
            return Ok(Device { path: backing, server: None, _file: file });
        };
        let mount = self.scratch.mount_point(&format!("{name}-device"))?;
        let mut command = self.child(&self.terrace);
        let (speed, flush_us) = class::parts(class);
        command.args(["bench", "device", "--class", speed, "--no-sync", "--foreground"]);
        command.args(flush_us.iter().flat_map(|us| ["--flush-us", *us]));
        // With cores of its own the server spins for requests and need not be woken.
        if self.device_cores.is_some() {
            command.arg("--awake");
        }
        command.arg(&backing).arg(&mount);
        let server = self.serve(command, &mount)?;
        if let (Some(cores), Some(process)) = (&self.device_cores, &server.server) {
            affinity::pin_process(process.pid(), cores)?;
        }
        Ok(Device { path: mount.join("device"), server: Some(server), _file: file })
    }

    /// A fully allocated file.
    pub fn allocated(&self, path: &Path, bytes: u64) -> Outcome<Held> {
        let _step = self.teardown.step();
        let file = File::create(path)?;
        let held = self.teardown.hold(Resource::File(path.to_path_buf()))?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|error| format!("{}: allocate {bytes} bytes: {error}", path.display()))?;
        Ok(held)
    }

    /// A file that is written from begin to end.
    fn written(&self, path: &Path, bytes: u64) -> Outcome<Held> {
        const PIECE: usize = 4 << 20;
        let held = self.allocated(path, bytes)?;
        let mut file = File::options().write(true).open(path)?;
        let zeros = vec![0; PIECE];
        let mut left = bytes;
        while left > 0 {
            self.teardown.go_on()?;
            let length = left.min(PIECE as u64);
            file.write_all(&zeros[..length as usize])?;
            left -= length;
        }
        file.sync_all()?;
        // Clean pages would be a second copy of what later goes to the file past the page cache.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(held)
    }

    /// A loop device over a file. `direct`: without a second copy in the page cache.
    pub fn loop_over(&self, file: &Path, direct: bool) -> Outcome<(String, Held)> {
        let mut args = vec!["--find".as_ref(), "--show".as_ref()];
        if direct {
            args.push("--direct-io=on".as_ref());
        }
        args.push(file.as_os_str());
        let _step = self.teardown.step();
        let device = run("losetup", args)?.trim().to_string();
        let held = self.teardown.hold(Resource::Loop(device.clone()))?;
        self.limit_dirty(&dirty::of_loop(&device))?;
        Ok((device, held))
    }

    /// Limits the dirty pages of a device, if this site limits dirty pages.
    pub fn limit_dirty(&self, bdi: &Path) -> Outcome<()> {
        match self.dirty_bytes {
            Ok(bytes) => dirty::limit(bdi, bytes),
            Err(_) => Ok(()),
        }
    }

    /// A loop device over a file in memory: PM as a block device.
    pub fn memory_loop(&self, name: &str, bytes: u64) -> Outcome<(String, Vec<Held>)> {
        let path = self.scratch.memory.join(name);
        let file = self.allocated(&path, bytes)?;
        let (device, held) = self.loop_over(&path, false)?;
        Ok((device, vec![file, held]))
    }

    /// A command whose process the kernel kills when the bench dies.
    pub fn child(&self, program: &Path) -> Command {
        const SETPRIV: &str = "/usr/bin/setpriv";
        if !Path::new(SETPRIV).exists() {
            return Command::new(program);
        }
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Starts a server and waits until it has mounted; the process and the mount are registered.
    pub fn serve(&self, command: Command, mount: &Path) -> Outcome<Served> {
        let _step = self.teardown.step();
        let server = Server::start(&self.scratch, command, mount)?;
        let mut served = Served { server: Some(server), held: Vec::new(), teardown: self.teardown.clone() };
        for resource in served.resources(mount) {
            served.held.push(self.teardown.hold(resource)?);
        }
        Ok(served)
    }
}
