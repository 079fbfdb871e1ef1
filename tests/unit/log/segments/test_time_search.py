"""Search by timestamp, exact to the record (ListOffsets). Spec: R4."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.partition_log import Origin
from ottla.log.segments.time_search import LargeBatch, OffsetAndTimestamp
from ottla.protocol.records import batch_inspection
from ottla.protocol.records.record_batch import (
    HEADER_SIZE,
    Codec,
    CorruptBatch,
    assemble,
    build_batch,
    open_section,
    read_header,
    read_records,
)
from tests.support.wire.damaged import damaged
from tests.support.worlds.log_world import NOON, LogWorld, find_by_time

SMALL: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 100}


def write(world: LogWorld, *batches: list[int], codec: Codec = Codec.NONE) -> None:
    """Appends batches whose records have these timestamps, relative to noon."""
    for times in batches:
        rows = [(NOON + time, None, b"v", ()) for time in times]
        world.log.append(build_batch(rows, codec=codec), leader_epoch=world.leader_epoch)
    world.commit()


def find(world: LogWorld, time: int, upper_bound: int | None = None) -> tuple[int, int] | None:
    bound = world.log.log_end_offset if upper_bound is None else upper_bound
    found = find_by_time(world.log, NOON + time, upper_bound=bound)
    return None if found is None else (found.offset, found.timestamp - NOON)


def latest(world: LogWorld, upper_bound: int | None = None) -> tuple[int, int] | None:
    found = find_by_time(world.log, None, upper_bound=world.log.log_end_offset if upper_bound is None else upper_bound)
    return None if found is None else (found.offset, found.timestamp - NOON)


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path, **SMALL)


def test_the_first_record_with_the_timestamp_is_found_inside_its_batch(world: LogWorld) -> None:
    write(world, [0, 10, 20], [30, 40, 50])
    assert [find(world, time) for time in (0, 1, 20, 21, 50, 51)] == [(0, 0), (1, 10), (2, 20), (3, 30), (5, 50), None]


def test_a_compressed_batch_is_searched_too(world: LogWorld) -> None:
    write(world, [0, 10, 20], codec=Codec.ZSTD)
    assert find(world, 5) == (1, 10)
    assert latest(world) == (2, 20)


def test_timestamps_need_not_increase(world: LogWorld) -> None:
    write(world, [50, 10], [5], [60, 55], [1])
    assert [find(world, time) for time in (0, 11, 51, 60, 61)] == [(0, 50), (0, 50), (3, 60), (3, 60), None]
    assert latest(world) == (3, 60)


def test_the_first_of_several_records_with_the_max_timestamp_is_found(world: LogWorld) -> None:
    write(world, [7, 9, 9], [9], [3])
    assert latest(world) == (1, 9)


def test_nothing_at_or_above_the_bound_is_found(world: LogWorld) -> None:
    write(world, [0], [10], [99], [20])
    assert find(world, 50, upper_bound=2) is None
    assert find(world, 50, upper_bound=3) == (2, 99)
    assert latest(world, upper_bound=2) == (1, 10)


def test_nothing_before_the_start_is_found(world: LogWorld) -> None:
    write(world, [0, 99], [10], [20])
    world.log.delete_records_before(2)
    assert find(world, 0) == (2, 10)
    assert find(world, 50) is None
    assert latest(world) == (3, 20)


def test_the_result_has_the_leader_epoch(world: LogWorld) -> None:
    write(world, [0])
    world.leader_epoch = 4
    write(world, [10])
    assert find_by_time(world.log, NOON + 5, upper_bound=2) == OffsetAndTimestamp(1, NOON + 10, 4)


def test_log_append_time_is_searched_if_the_topic_uses_it(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_type="LogAppendTime")
    write(world, [-5000, -4000])
    world.now += 100
    write(world, [-9000])
    assert find(world, -4500) == (0, 0)
    assert find(world, 1) == (2, 100)
    assert latest(world) == (2, 100)


def test_an_empty_log_has_no_timestamps(world: LogWorld) -> None:
    assert find(world, 0) is None
    assert latest(world) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=25),
    st.integers(0, 30),
    st.integers(0, 100),
    st.sampled_from(["stay", "restart", "crash"]),
)
def test_every_result_equals_that_of_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], start: int, bound: int, life: str
) -> None:
    world = LogWorld(tmp_path_factory.mktemp("times"), **SMALL)
    write(world, *batches)
    if life == "restart":
        world.restart()
    elif life == "crash":
        world.crash()
    times = [time for batch in batches for time in batch]
    world.log.delete_records_before(min(start, len(times)))
    bound = min(bound, len(times))
    # A bound is always between batches: the high watermark moves by whole batches.
    ends = [sum(map(len, batches[: number + 1])) for number in range(len(batches))]
    bound = max([end for end in ends if end <= bound], default=0)
    seen = [(offset, time) for offset, time in enumerate(times) if start <= offset < bound]
    for time in range(-1, 62):
        expected = next(((offset, t) for offset, t in seen if t >= time), None)
        assert find(world, time, bound) == expected
    best = max((t for _, t in seen), default=None)
    assert latest(world, bound) == next(((offset, t) for offset, t in seen if t == best), None)
    world.log.store.close()


# Batches that cannot be read, and batches that take long


def store(world: LogWorld, batch: bytes) -> None:
    """Stores a batch unchecked, as an older version did with the batches of its clients."""
    world.log.append(batch, leader_epoch=0, origin=Origin.COORDINATOR)
    world.commit()


@pytest.mark.parametrize("codec", Codec)
def test_a_damaged_batch_is_named_with_the_offset_after_it(tmp_path: Path, codec: Codec) -> None:
    """Spec: R8. Searches that do not need the batch are not affected."""
    for number, (name, bad) in enumerate(damaged(codec).items()):
        if name.startswith("offset deltas"):
            continue  # the search may end before it reaches the wrong one
        world = LogWorld(tmp_path / str(number))
        write(world, [-100])
        header = read_header(bad)._replace(base_timestamp=NOON, max_timestamp=NOON)
        store(world, assemble(header, bad[HEADER_SIZE:]))
        write(world, [-50])
        after = world.log.log_end_offset - 1
        assert find(world, -200) == (0, -100), name
        for timestamp in (NOON - 60, None):
            with pytest.raises(CorruptBatch) as caught:
                find_by_time(world.log, timestamp, upper_bound=after + 1)
            assert caught.value.detail.startswith("the batch at offset 1 cannot be read: "), name
            assert caught.value.detail.endswith(f"; the next one begins at offset {after}"), name


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_large_compressed_batch_is_searched_apart(tmp_path: Path, codec: Codec) -> None:
    """The event loop does not decompress it; what a thread has found is remembered."""
    world = LogWorld(tmp_path)
    rows = [(NOON + time % 7000, None, bytes(300), ()) for time in range(10_000)]
    world.log.append(build_batch(rows, codec=codec), leader_epoch=0)
    world.commit()
    for timestamp, expected in ((NOON + 6500, (6500, NOON + 6500)), (None, (6999, NOON + 6999))):
        search = world.log.time_search(timestamp)
        with pytest.raises(LargeBatch) as caught:
            world.log.search(search, 10_000)
        caught.value.search()
        found = world.log.search(search, 10_000)
        assert found is not None
        assert (found.offset, found.timestamp) == expected
    assert find(world, 6999) == (6999, 6999)
    world.log.delete_records_before(7000)
    assert find(world, 0) == (7000, 0)
    assert latest(world) == (9999, 2999)


def test_a_batch_larger_than_the_topic_allows_is_not_decompressed(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, max_decompressed_bytes=2_000_000)
    store(world, build_batch([(NOON, None, bytes(3_000_000), ())], codec=Codec.LZ4))
    with pytest.raises(CorruptBatch, match=r"offset 0 cannot be read: the data expands .* limit of 2000000 bytes"):
        find(world, 0)


@given(
    times=st.lists(st.integers(-5, 5), min_size=1, max_size=40),
    codec=st.sampled_from(Codec),
    from_offset=st.integers(0, 41),
    wanted=st.integers(-6, 6),
    window=st.integers(1, 200),
)
def test_records_are_found_in_windows(
    times: list[int], codec: Codec, from_offset: int, wanted: int, window: int
) -> None:
    batch = build_batch([(NOON + time, None, bytes(abs(time)), ()) for time in times], codec=codec)
    section = open_section(batch, 0, read_header(batch))
    records = [record[:2] for record in read_records(batch) if record.offset >= from_offset]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_inspection, "_WINDOW_BYTES", window)
        found = batch_inspection.first_at_or_after(section, NOON + wanted, from_offset)
        assert found == next((stamp for stamp in records if stamp[1] >= NOON + wanted), None)
        best = max(records, key=lambda stamp: stamp[1], default=None)
        assert batch_inspection.latest(section, from_offset) == best
