//! The choice of random operations: `chooser` draws their parts, `names` and `content` whole operations.

pub mod chooser;
pub mod content;
pub mod names;

use chooser::Chooser;
use rand::Rng;
use terrace_reference::{Kind, Op, ROOT, Seek};

impl Chooser<'_> {
    /// Chooses the next operation.
    pub fn choose(&mut self) -> Op {
        if self.model.allocated_blocks() > self.config.tree.most_blocks
            && let Some(op) = self.shrink()
        {
            return op;
        }
        if self.config.tree.many_names && self.rng.random_ratio(1, 4) {
            return self.choose_make();
        }
        if self.rng.random_ratio(3, 4)
            && let Some(op) = self.choose_of_mix()
        {
            return op;
        }
        match self.rng.random_range(0..1000) {
            number @ 0..=239 => self.choose_on_names(number),
            240..=259 => {
                let (id, truncate) = (self.file(), self.rng.random_ratio(1, 8));
                // Opens a further descriptor of an open file.
                let other = self
                    .known
                    .opens
                    .keys()
                    .next()
                    .copied()
                    .filter(|_| self.config.by_hand && id.0.is_multiple_of(2));
                Op::Open { id: other.unwrap_or(id), truncate }
            }
            260..=329 => self.choose_release(),
            330..=339 => Op::GetAttributes { id: self.any() },
            340..=519 => self.choose_read(),
            520..=739 => {
                let id = self.file();
                self.choose_write(id)
            }
            740..=819 => self.choose_attributes(),
            820..=859 => self.choose_fallocate(),
            860..=889 => {
                let id = self.file();
                let size = self.model.size_of(id);
                let offset = self.rng.random_range(0..=size.saturating_add(size / 8 + 1));
                let what = if self.rng.random() { Seek::Data } else { Seek::Hole };
                Op::Seek { id, offset, what }
            }
            890..=939 => self.choose_xattr(),
            940..=979 => self.choose_read_directory(),
            980..=989 => {
                let link = self.pick(|kind, _| matches!(kind, Kind::Symlink(_)));
                Op::ReadLink { id: link.unwrap_or(ROOT) }
            }
            _ => {
                let id = self.any();
                Op::Fsync { id: self.known.descriptors.due().filter(|_| self.config.by_hand).unwrap_or(id) }
            }
        }
    }
}
