//! Sets of blocks: a list in the order of use, and a bag for random picks.

const NONE: u32 = u32::MAX;

/// A list of blocks in the order of their last use; a block is in the list at most once.
#[derive(Debug)]
pub(crate) struct Order {
    /// Predecessor and successor of each block; the block itself twice if it is not in the list.
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
    /// The block of the oldest `put`.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Inserts a block as the newest, or makes it the newest.
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

    /// Removes a block; whether it was in the list.
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

    /// Blocks from the oldest to the newest.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |block| {
            Some(self.links[*block as usize].1).filter(|next| *next != NONE)
        })
    }
}

/// Blocks without order; each can be picked by its index.
#[derive(Debug)]
pub(crate) struct Bag {
    list: Vec<u32>,
    /// The index of each block in `list`, plus 1; 0: not in the bag.
    places: Vec<u32>,
}

impl Bag {
    pub fn new(blocks: usize) -> Bag {
        // An additional entry for the number that no block has (victims.rs).
        Bag { list: Vec::new(), places: vec![0; blocks + 1] }
    }
    pub fn len(&self) -> usize {
        self.list.len()
    }
    pub fn holds(&self, block: u32) -> bool {
        self.places[block as usize] > 0
    }
    pub fn at(&self, place: usize) -> Option<u32> {
        self.list.get(place).copied()
    }
    pub fn put(&mut self, block: u32) {
        if !self.holds(block) {
            self.list.push(block);
            self.places[block as usize] = self.list.len() as u32;
        }
    }
    pub fn remove(&mut self, block: u32) {
        if let Some(at) = (std::mem::take(&mut self.places[block as usize]) as usize).checked_sub(1) {
            self.list.swap_remove(at);
            if let Some(moved) = self.list.get(at) {
                self.places[*moved as usize] = at as u32 + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_listed_in_the_order_of_use() {
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
    #[test]
    fn every_block_of_a_bag_can_be_removed() {
        let mut bag = Bag::new(4);
        [2, 0, 2, 3].into_iter().for_each(|block| bag.put(block));
        assert_eq!((bag.len(), bag.at(0), bag.at(3)), (3, Some(2), None));
        bag.remove(2);
        bag.remove(1);
        assert!(bag.holds(0) && bag.holds(3) && !bag.holds(2) && !bag.holds(4));
        assert_eq!((bag.len(), bag.at(0), bag.at(1)), (2, Some(3), Some(0)), "the last took its place");
        bag.remove(0);
        bag.remove(3);
        assert_eq!((bag.len(), bag.at(0)), (0, None));
    }
}
