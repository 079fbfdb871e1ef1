"""Search by timestamp, exact to the record (ListOffsets). Spec: R4."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.segments.time_search import OffsetAndTimestamp
from ottla.protocol.record_batch import Codec, build_batch
from tests.support.worlds.log_world import NOON, LogWorld

SMALL: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 100}


def write(world: LogWorld, *batches: list[int], codec: Codec = Codec.NONE) -> None:
    """Appends batches whose records have these timestamps, relative to noon."""
    for times in batches:
        rows = [(NOON + time, None, b"v", ()) for time in times]
        world.log.append(build_batch(rows, codec=codec), leader_epoch=world.leader_epoch)
    world.commit()


def find(world: LogWorld, time: int, upper_bound: int | None = None) -> tuple[int, int] | None:
    bound = world.log.log_end_offset if upper_bound is None else upper_bound
    found = world.log.find_offset_by_timestamp(NOON + time, upper_bound=bound)
    return None if found is None else (found.offset, found.timestamp - NOON)


def latest(world: LogWorld, upper_bound: int | None = None) -> tuple[int, int] | None:
    found = world.log.find_max_timestamp(world.log.log_end_offset if upper_bound is None else upper_bound)
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
    assert world.log.find_offset_by_timestamp(NOON + 5, upper_bound=2) == OffsetAndTimestamp(1, NOON + 10, 4)


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
