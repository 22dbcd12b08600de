//! Mount options for `terrace mount --help` and mount.terrace(8), in groups. docs/operating.md says more of
//! each.

/// The text below the arguments in the help of `mount`.
pub const MOUNT_OPTIONS: &str = "\
Options in general:
  ro                        refuse changes
  noatime                   never record access times
  allow_other               other users may use the mount (root's: always)
  nosuid, nodev, noexec     as in mount(8), as are nodiratime, dirsync, sync
  remount                   with ro or rw: change a mount that is there
  transport=auto|uring|classic
                            how requests come from the kernel (auto)
  log=PATH                  append the log to this file

Devices that have moved or are missing:
  tier=PATH                 a device of a lower tier is here now; once for each
  degraded                  do without lower devices that are not there

Memory:
  cache=auto|SIZE           copies of blocks of lower tiers (auto)
  kernel_cache=SIZE         files of the fast tier in the kernel's page cache (half of memory)
  buffer=SIZE               writes that wait in DRAM, for a lower tier or lazily (64M)
  lazy=auto|on|off          writes of the fast tier wait there, too, and may be lost until fsync, also in part:
                            auto: where its writes are slow; on: always; off: never (auto)
  lazy_low=PERCENT, lazy_high=PERCENT
                            write-back begins when less of the buffer is free than the first, and ends at the second (5, 20)
  lazy_period=TIME, lazy_age=TIME
                            how often to look for writes that wait for so long, and write them (5s, 30s)
  lazy_idle=TIME            a file without an fsync for so long is written lazily (5s)
  prefetch=SIZE             read at once from a lower tier (128K)
  prefetch_ms=N             how long neighbours stay that nobody asked for (1000)

Durability:
  data=atomic|ordered       a write is all or nothing after a crash, or in place
  journal_ms=N, journal_buffer=SIZE
                            pools made with --journal: how long changes wait for the journal without an fsync, and
                            the memory in which they wait (1000, 64M)
  durable=auto|dsync|flush  of the same pools: whether each write to the journal asks for durability itself, or a
                            flush follows; auto tries both when it mounts
  metadata=any|pm           whether names and attributes may move to lower tiers (any)

Placement:
  policy=NAME               predictive, write-only, anticache or static
  threshold=PERCENT         policy=anticache: how full the fast tier may be (80)
  group=SIZE                most bytes moved down at once (16M)
  touches=N                 the read of a cold block that brings it up (2)
  first_touch               as touches=1
  spill_high=PERCENT, spill_low=PERCENT
                            a lower tier fuller than the one gives files to slower tiers down to the other (95, 90)

Placement by prediction (policy=predictive, write-only):
  sync_blocks=N             files with fewer blocks between two fsyncs are synchronous (1024)
  large_after=N, large_min=SIZE
                            a write is large after so many of at least this size (4, 64K)
  large_pm=PERCENT          large writes go to the fast tier too below this use (50; 0 with a journal)
  read_times=N              reads of a file's size that make it read-dominated (2)
  whole_after_s=N           files that were not used for so long go down whole (30)
  threshold_even=PERCENT, threshold_step=PERCENT
                            use above which data goes down, and more for each doubling of reads over writes (70, 5)
  threshold_min=PERCENT, threshold_max=PERCENT
                            bounds of that (50, 90)
  threshold_decay=N         how fast what was read and written counts less (8)
  dataflow_high=RATIO, dataflow_low=RATIO, dataflow_s=N
                            when DRAM or the fast tier is taken for idle (2, 0.5, 4)

For trials:
  emulate-pm=[line:|run:]WRITE_NS:BYTES_PER_S[:READ_NS]
                            the fast tier takes as long as another memory
  emulate-tier=TIER:CLASS   a tier takes as long as a class of devices

SIZE takes K, M, G, T; TIME is in seconds, or has the unit ms or s. Defaults in parentheses; docs/operating.md says what each option does.

Example: terrace mount /dev/shm/terrace/pool /mnt -o noatime,cache=256M";
