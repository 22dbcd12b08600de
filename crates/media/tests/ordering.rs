//! Ordering points: fences and flushes are known by their source lines and can be left out or weakened.

use std::sync::Arc;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};

struct World {
    clock: Arc<CrashClock>,
    pm: Arc<dyn PmMedium>,
    recorded: Arc<RecordedPm>,
    device: Arc<SimulatedDevice>,
}

fn world() -> World {
    let clock = CrashClock::new();
    let recorded = Arc::new(RecordedPm::with_clock(vec![0; 4096], &clock));
    let device = Arc::new(SimulatedDevice::with_clock("device", DeviceImage::zeroed(4), &clock));
    World { clock, pm: recorded.clone(), recorded, device }
}

fn block(fill: u8) -> AlignedBlock {
    AlignedBlock([fill; 4096])
}

impl World {
    /// An order, a persist and a flush, always from the same three source lines.
    fn all_three(&self) {
        self.pm.write(PmOffset(0), &[1; 8]).unwrap();
        self.pm.order();
        self.pm.write(PmOffset(64), &[1; 8]).unwrap();
        self.pm.persist();
        let device: &dyn BlockMedium = &*self.device;
        device.write(DeviceBlock(1), &[block(1)]).unwrap();
        device.flush().unwrap();
    }

    fn point(&self, kind: OrderingKind) -> OrderingPoint {
        let points = self.clock.ordering().points();
        points.into_iter().map(|(point, _)| point).find(|point| point.kind == kind).unwrap()
    }
}

#[test]
fn points_are_the_lines_of_the_callers() {
    let world = world();
    world.all_three();
    world.all_three();
    let first = line!() + 1;
    world.recorded.order();
    world.device.flush().unwrap();
    let points = world.clock.ordering().points();
    let kinds: Vec<_> = points.iter().map(|(point, count)| (point.kind, *count)).collect();
    use OrderingKind::{Flush, Order, Persist};
    assert_eq!(kinds, [(Order, 2), (Persist, 2), (Flush, 2), (Order, 1), (Flush, 1)]);
    assert!(points.iter().all(|(point, _)| point.file == file!()), "{points:?}");
    assert_eq!([points[3].0.line, points[4].0.line], [first, first + 1]);
    assert!(points[3].0.to_string().ends_with(" (order)"));
    world.clock.ordering().forget();
    assert!(world.clock.ordering().points().is_empty());
}

#[test]
fn a_removed_ordering_point_makes_no_store_durable_and_still_counts_as_an_event() {
    let whole = world();
    whole.all_three();
    for kind in [OrderingKind::Order, OrderingKind::Persist, OrderingKind::Flush] {
        let world = world();
        world.all_three();
        let before = world.clock.now();
        world.clock.ordering().change(Some((world.point(kind), Change::Removed)));
        world.recorded.write(PmOffset(128), &[3; 8]).unwrap();
        world.all_three();
        assert_eq!(world.clock.now() - before, whole.clock.now() + 1);
        let pending = world.recorded.snapshot().pending_count();
        let unflushed = world.device.snapshot().unflushed_count();
        // Without the first fence the second covers all; without the second its own line stays open.
        let expected = match kind {
            OrderingKind::Order => (0, 0),
            OrderingKind::Persist => (1, 0),
            OrderingKind::Flush => (0, 1),
        };
        assert_eq!((pending, unflushed), expected, "{kind:?}");
        world.clock.ordering().change(None);
        world.all_three();
        assert_eq!(world.recorded.snapshot().pending_count(), 0);
        assert_eq!(world.device.snapshot().unflushed_count(), 0);
    }
}

#[test]
fn a_removed_order_ends_no_epoch_and_a_weakened_persist_only_ends_one() {
    let epochs = |change: Option<(OrderingKind, Change)>| {
        let world = world();
        world.recorded.set_persist_only(true);
        world.all_three();
        assert_eq!(world.recorded.snapshot().epoch_count(), 1);
        world.clock.ordering().change(change.map(|(kind, change)| (world.point(kind), change)));
        world.all_three();
        let snapshot = world.recorded.snapshot();
        (snapshot.epoch_count(), snapshot.pending_count())
    };
    assert_eq!(epochs(None), (1, 0));
    assert_eq!(epochs(Some((OrderingKind::Persist, Change::WeakenedToOrder))), (3, 2));
    assert_eq!(epochs(Some((OrderingKind::Persist, Change::Removed))), (2, 2));
    assert_eq!(epochs(Some((OrderingKind::Order, Change::Removed))), (1, 0));
    assert_eq!(epochs(Some((OrderingKind::Order, Change::WeakenedToOrder))), (1, 0));
}
