"""Leader epochs (KIP-320): committed with the offset and sent with the first fetch, to detect truncation."""

# ruff: noqa: SLF001  (sets up or checks internal state)

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.positions import EPOCHS_KEPT, PartitionState
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.group.commits import CommittedLookup
from ottla.net.backoff import Backoff
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.protocol.records.record_batch import build_batch
from ottla.types import TopicPartition
from tests.support.worlds.consumer_world import ConsumerWorld

T0 = TopicPartition("t", 0)


def batch(offset: int, count: int, epoch: int) -> bytes:
    rows = [(1_000, None, b"v", ()) for _ in range(count)]
    return build_batch(rows, base_offset=offset, partition_leader_epoch=epoch)


def test_a_completed_fetch_has_the_first_offset_of_each_epoch() -> None:
    data = batch(5, 2, 3) + batch(7, 1, 3) + batch(8, 2, 4) + batch(12, 1, 6)
    assert CompletedFetch(T0, memoryview(data), 6).epochs == [(5, 3), (8, 4), (12, 6)]
    assert CompletedFetch(T0, memoryview(batch(5, 2, 3)), 5).epochs == [(5, 3)]


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    state = PartitionState()
    state.move_to(6)
    assert state.epoch_before(6) == -1, "nothing was read yet"
    state.note_epochs([(5, 3), (8, 4)])
    state.note_epochs([(10, 4), (12, 6)])
    found = {offset: state.epoch_before(offset) for offset in (5, 6, 8, 9, 12, 13)}
    assert found == {5: -1, 6: 3, 8: 3, 9: 4, 12: 4, 13: 6}
    state.move_to(20, epoch=7)
    assert (state.epoch_before(20), state.last_epoch) == (7, 7)
    state.note_epochs((100 + epoch, epoch) for epoch in range(8, 100))
    assert len(state.epochs) == EPOCHS_KEPT
    assert state.epoch_before(10**9) == 99


def test_the_epoch_is_still_known_when_records_are_read_again() -> None:
    """Records that were taken but did not reach the user are fetched again; a truncation meanwhile is detected."""
    world = ConsumerWorld()
    world.logs[T0].append("a", "b", epoch=3)
    world.logs[T0].append("c", epoch=4)
    world.exchange(3)
    assert world.take(max_records=2) == ["a", "b"]
    world.fetcher.begin_to_take()
    assert world.take() == ["c"]
    world.fetcher.take_back()
    world.exchange()
    asked = world.asked[-1].topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, 3)
    assert world.state().epoch_before(2) == 3, "what a commit would include"


def test_reading_starts_with_the_committed_epoch() -> None:
    """If the leader's log diverges, it returns the end of that epoch, and reading continues there."""
    world = ConsumerWorld(group_id="g")
    coordinator = CoordinatorFinder("g", world.view, backoff=Backoff(100, 1_000))
    coordinator._node_id = 1
    lookup = CommittedLookup(world.config, world.positions, coordinator, backoff=Backoff(100, 1_000))
    lookup.begin(T0)
    (request,) = lookup.poll(world.now).requests
    part = OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=2, committed_leader_epoch=3, metadata=""
    )
    topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=[part])
    group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic])
    request.on_response(OffsetFetchResponse(groups=[group]), 9, world.now)
    world.logs[T0].append("a", "b", "c", epoch=3)
    world.exchange()
    asked = world.asked[-1].topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, 3)
    assert world.take() == ["c"]
