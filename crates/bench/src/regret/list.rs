//! Blocks in an order of use: a linked list inside of two arrays, by block number.

const NONE: u32 = u32::MAX;

/// A list; each block is in it at most once.
#[derive(Debug)]
pub(crate) struct Order {
    /// Before and after each block; of those not in it, itself twice.
    links: Vec<(u32, u32)>,
    oldest: u32,
    newest: u32,
    count: usize,
}

impl Order {
    pub fn new(blocks: usize) -> Order {
        let links = (0..blocks as u32).map(|block| (block, block)).collect();
        Order { links, oldest: NONE, newest: NONE, count: 0 }
    }
    pub fn len(&self) -> usize {
        self.count
    }
    pub fn holds(&self, block: u32) -> bool {
        let (before, after) = self.links[block as usize];
        before != block || after != block
    }
    /// The one put in longest ago.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Puts it in, or makes it the newest.
    pub fn put(&mut self, block: u32) {
        self.remove(block);
        self.links[block as usize] = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = block,
            newest => self.links[newest as usize].1 = block,
        }
        self.newest = block;
        self.count += 1;
    }

    /// Takes it out; whether it was there.
    pub fn remove(&mut self, block: u32) -> bool {
        if !self.holds(block) {
            return false;
        }
        let (before, after) = std::mem::replace(&mut self.links[block as usize], (block, block));
        match before {
            NONE => self.oldest = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.links[after as usize].0 = before,
        }
        self.count -= 1;
        true
    }

    /// From the oldest on.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |block| {
            Some(self.links[*block as usize].1).filter(|next| *next != NONE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_last_use() {
        let mut order = Order::new(5);
        [3, 1, 4, 3].into_iter().for_each(|block| order.put(block));
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 4, 3]);
        assert!(order.remove(4) && !order.remove(4) && order.holds(1) && !order.holds(0));
        assert_eq!((order.iter().collect::<Vec<_>>(), order.len()), (vec![1, 3], 2));
        assert!(order.remove(1) && order.remove(3));
        assert_eq!((order.oldest(), order.len()), (None, 0));
        order.put(2);
        assert_eq!(order.oldest(), Some(2));
    }
}
