"""Compaction and transactions: aborted records, markers, and transactions that cross what one pass reads."""

from pathlib import Path

from ottla.clock import MonotonicMs
from ottla.log.cleaning.compaction import TransactionTracker
from ottla.log.cleaning.log_cleaning import enforce_retention
from ottla.log.partition_log import Origin
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.record_batch import build_batch, control_batch, read_header
from tests.support.worlds.compacted_log import DAY, compact_keys, compacted, roll


def test_an_open_transaction_holds_back_compaction(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"))
    roll(world)
    world.produce(7, ("a", "2"), transactional=True)
    roll(world)
    world.append(("a", "3"))
    roll(world)
    world.compact()
    assert world.pairs() == [(0, "a", "1"), (1, "a", "2"), (2, "a", "3")]
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(2, "a", "3")]


def test_an_aborted_record_does_not_displace_a_committed_one(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "good"))
    world.produce(7, ("a", "bad"), transactional=True)
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(0, "a", "good")]


def test_one_pass_removes_the_records_of_several_aborted_transactions(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "good"))
    for producer_id in (7, 8, 7):
        world.produce(producer_id, ("a", "bad"), transactional=True)
        world.produce(9, (f"from-{producer_id}", "good"), transactional=True)
        world.ends(producer_id, abort=True)
    world.ends(9, abort=False)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(0, "a", "good"), (5, "from-8", "good"), (8, "from-7", "good")]


def test_an_abort_marker_is_removed_one_horizon_after_its_records(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "bad"), transactional=True)
    world.ends(7, abort=True)
    world.produce(7, ("z", "1"))
    markers = []
    for _ in range(4):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        markers.append([h.has_delete_horizon for h, _ in world.read_batches() if h.is_control])
        assert world.log.aborted_transactions(0, 99) in ([], [AbortedTransaction(7, 0, 1, 2)])
        world.now += DAY
    assert markers == [[False], [True], [], []]
    assert world.log.aborted_transactions(0, 99) == []
    world.restart()
    assert world.log.aborted_transactions(0, 99) == []


def test_a_commit_marker_is_kept_while_a_record_of_its_transaction_is(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    world.ends(7, abort=False)
    world.produce(7, ("z", "1"))
    for _ in range(3):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert [header.has_delete_horizon for header, _ in world.read_batches() if header.is_control] == [False]
    world.append(("a", "2"))
    for _ in range(3):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert not any(header.is_control for header, _ in world.read_batches())


def test_the_marker_with_an_active_producers_epoch_is_kept_without_records(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    world.ends(7, abort=True)
    world.produce(7, ("a", "2"), transactional=True)
    world.ends(7, abort=True, epoch=1)
    for _ in range(4):
        world.append(("b", "1"))
        roll(world)
        world.compact()
        world.now += 2 * DAY
    shells = [(header.producer_epoch, header.record_count) for header, _ in world.read_batches() if header.is_control]
    assert shells == [(1, 0)]
    world.crash()
    entry = world.log.producers.find(7)
    assert entry is not None
    assert entry.producer_epoch == 1, "a zombie of epoch 0 is still fenced"
    world.produce(7, ("c", "1"), epoch=1)
    roll(world)
    assert world.compact()
    assert not any(header.is_control for header, _ in world.read_batches()), "the batch after it has the epoch too"


def test_a_transaction_that_ends_in_a_later_segment_is_not_lost(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "good"))
    world.produce(7, ("a", "bad"), ("b", "bad"), transactional=True)
    roll(world)
    world.ends(7, abort=True)
    world.append(("c", "1"))
    assert world.compact()
    assert world.pairs() == [(0, "a", "good"), (4, "c", "1")]
    assert world.log.aborted_transactions(0, 99) == [AbortedTransaction(7, 1, 3, 4)]
    for _ in range(2):
        # One pass removes the empty aborted batch, the next finds the marker without records.
        world.produce(7, ("d", "1"))
        roll(world)
        assert world.compact()
    assert world.log.aborted_transactions(0, 99) == []


def test_an_abort_before_the_dirty_part_does_not_hide_later_commits(tmp_path: Path) -> None:
    """The tombstone is read as committed, so it removes the value; else the key would reappear without it."""
    world = compacted(tmp_path)
    world.produce(7, ("k", "value"), transactional=True)
    world.ends(7, abort=False)
    world.produce(7, ("other", "x"), transactional=True)
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    world.produce(7, ("k", None), transactional=True)
    world.ends(7, abort=False)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(4, "k", None)]
    world.now += DAY
    world.produce(7, ("z", "1"))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(6, "z", "1")]


def test_a_transaction_that_began_before_the_dirty_part_is_still_aborted(tmp_path: Path) -> None:
    """A pass that runs out of memory may stop in the middle of a transaction."""
    world = compacted(tmp_path)
    world.append(("a", "good"), ("b", "good"))
    world.produce(7, ("c", "bad"), transactional=True)
    world.append(("d", "good"))
    world.produce(7, ("a", "bad"), ("b", "bad"), transactional=True)
    world.ends(7, abort=True)
    world.produce(7, ("b", "better"), transactional=True)
    world.ends(7, abort=False)
    roll(world)
    compact_keys(world, 3)
    assert world.log.first_dirty_offset == 4, "in the middle of the transaction"
    assert world.compact()
    assert world.pairs() == [(0, "a", "good"), (3, "d", "good"), (7, "b", "better")]


def test_a_snapshot_from_inside_a_transaction_does_not_outlive_its_marker(tmp_path: Path) -> None:
    """Recovery from the snapshot would not see the transaction end, and readers would wait for it forever."""
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    roll(world)
    world.ends(7, abort=False)
    world.log.delete_records_before(1)
    enforce_retention(world.log, world.now)
    assert world.log.segments.bases == [1], "the snapshot at its start knows an open transaction"
    world.log.expire_producers(MonotonicMs(world.now + 2 * DAY))
    for _ in range(2):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert not any(header.is_control for header, _ in world.read_batches())
    world.crash(recovery_point=0)
    assert world.log.last_stable_offset == world.log.log_end_offset


def test_coordinator_records_are_compacted_like_others(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    for number in range(3):
        world.append(("group", str(number)), origin=Origin.COORDINATOR)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(2, "group", "2")]


def test_an_abort_marker_is_not_idle_while_an_empty_batch_of_its_transaction_is_left() -> None:
    """After a recovery the index may not have the transaction. Without the marker, a replay would not see it end."""
    tracker = TransactionTracker([])
    row = (1, b"k", b"v", ())
    batch = build_batch([row], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert not tracker.is_aborted(read_header(rewrite(batch, keep_offsets=())))
    for offset, is_idle in ((1, False), (2, True)):
        marker = control_batch(
            commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=offset
        )
        assert tracker.is_idle_marker(read_header(marker), marker) == is_idle
