//! Ordering points: fences and flushes are known by their source lines and can be left out or weakened.

use std::sync::Arc;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};

/// PM and a device whose events one crash clock counts.
struct PmAndDevice {
    clock: Arc<CrashClock>,
    pm: Arc<dyn PmMedium>,
    recorded: Arc<RecordedPm>,
    device: Arc<SimulatedDevice>,
}

fn pm_and_device() -> PmAndDevice {
    let clock = CrashClock::new();
    let recorded = Arc::new(RecordedPm::with_clock(vec![0; 4096], &clock));
    let device = Arc::new(SimulatedDevice::with_clock("device", DeviceImage::zeroed(4), &clock));
    PmAndDevice { clock, pm: recorded.clone(), recorded, device }
}

fn block(fill: u8) -> AlignedBlock {
    AlignedBlock([fill; 4096])
}

impl PmAndDevice {
    /// An order, a persist and a flush, always from the same three source lines.
    fn all_three(&self) {
        self.pm.write(PmOffset(0), &[1; 8]).unwrap();
        self.pm.order();
        self.pm.write(PmOffset(64), &[1; 8]).unwrap();
        self.pm.persist().unwrap();
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
fn ordering_points_are_the_source_lines_of_the_callers() {
    let media = pm_and_device();
    media.all_three();
    media.all_three();
    let first = line!() + 1;
    media.recorded.order();
    media.device.flush().unwrap();
    let points = media.clock.ordering().points();
    let kinds: Vec<_> = points.iter().map(|(point, count)| (point.kind, *count)).collect();
    use OrderingKind::{Flush, Order, Persist};
    assert_eq!(kinds, [(Order, 2), (Persist, 2), (Flush, 2), (Order, 1), (Flush, 1)]);
    assert!(points.iter().all(|(point, _)| point.file == file!()), "{points:?}");
    assert_eq!([points[3].0.line, points[4].0.line], [first, first + 1]);
    assert!(points[3].0.to_string().ends_with(" (order)"));
    media.clock.ordering().forget();
    assert!(media.clock.ordering().points().is_empty());
}

#[test]
fn a_removed_ordering_point_makes_no_store_durable_and_still_counts_as_an_event() {
    let whole = pm_and_device();
    whole.all_three();
    for kind in [OrderingKind::Order, OrderingKind::Persist, OrderingKind::Flush] {
        let media = pm_and_device();
        media.all_three();
        let before = media.clock.now();
        media.clock.ordering().change(Some((media.point(kind), Change::Removed)));
        media.recorded.write(PmOffset(128), &[3; 8]).unwrap();
        media.all_three();
        assert_eq!(media.clock.now() - before, whole.clock.now() + 1);
        let pending = media.recorded.snapshot().pending_count();
        let unflushed = media.device.snapshot().unflushed_count();
        // Without the first fence the second covers all; without the second its own line stays open.
        let expected = match kind {
            OrderingKind::Order => (0, 0),
            OrderingKind::Persist => (1, 0),
            OrderingKind::Flush | OrderingKind::DurableWrite => (0, 1),
        };
        assert_eq!((pending, unflushed), expected, "{kind:?}");
        media.clock.ordering().change(None);
        media.all_three();
        assert_eq!(media.recorded.snapshot().pending_count(), 0);
        assert_eq!(media.device.snapshot().unflushed_count(), 0);
    }
}

#[test]
fn a_removed_order_ends_no_epoch_and_a_weakened_persist_only_ends_one() {
    let epochs = |change: Option<(OrderingKind, Change)>| {
        let media = pm_and_device();
        media.recorded.set_persist_only(true);
        media.all_three();
        assert_eq!(media.recorded.snapshot().epoch_count(), 1);
        media.clock.ordering().change(change.map(|(kind, change)| (media.point(kind), change)));
        media.all_three();
        let snapshot = media.recorded.snapshot();
        (snapshot.epoch_count(), snapshot.pending_count())
    };
    assert_eq!(epochs(None), (1, 0));
    assert_eq!(epochs(Some((OrderingKind::Persist, Change::WeakenedToOrder))), (3, 2));
    assert_eq!(epochs(Some((OrderingKind::Persist, Change::Removed))), (2, 2));
    assert_eq!(epochs(Some((OrderingKind::Order, Change::Removed))), (1, 0));
    assert_eq!(epochs(Some((OrderingKind::Order, Change::WeakenedToOrder))), (1, 0));
}
