"""Incremental fetches (KIP-227): what a session remembers, what responses leave out, and eviction."""

import itertools
from typing import Any

import pytest

from ottla.broker.handler_support.fetching.fetch_sessions import (
    EVICTION_MS,
    PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
    SessionPartition,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.fetch_session_epochs import next_epoch
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.types import INT32_MAX

NOW = 1_000_000


def asks(*partitions: tuple[str, int], session_id: int = 0, epoch: int = 0, forget: Any = ()) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(topic=topic, partitions=[FetchRequest.FetchPartition(partition=index)])
            for topic, index in partitions
        ],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=topic, partitions=[index]) for topic, index in forget],
    )


class Cache:
    """A session cache with a manual clock."""

    def __init__(self, slots: int = 1000) -> None:
        self.now = NOW
        ids = itertools.count(1)
        self.sessions = FetchSessions(slots, new_id=lambda: next(ids))

    def opens(self, *partitions: tuple[str, int], is_follower: bool = False) -> int:
        asked = [SessionPartition(topic, FetchRequest.FetchPartition(partition=index)) for topic, index in partitions]
        return self.sessions.create(asked, uses_topic_ids=False, is_follower=is_follower, monotonic_ms=self.now)

    def resumes(
        self, request: FetchRequest, uses_topic_ids: bool = False, *, is_follower: bool = False
    ) -> FetchSession | None:
        return self.sessions.resume(
            request, uses_topic_ids=uses_topic_ids, is_follower=is_follower, monotonic_ms=self.now
        )

    def refuses(
        self, request: FetchRequest, code: ErrorCode, uses_topic_ids: bool = False, *, is_follower: bool = False
    ) -> None:
        with pytest.raises(KafkaError) as caught:
            self.resumes(request, uses_topic_ids, is_follower=is_follower)
        assert caught.value.code == code


def test_a_session_continues_with_the_partitions_it_was_opened_with() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0), ("b", 1))
    session = cache.resumes(asks(session_id=session_id, epoch=1))
    assert session is not None
    assert list(session.partitions) == [("a", 0), ("b", 1)]


def test_epochs_count_up_and_a_repeated_or_skipped_one_is_refused() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0))
    cache.resumes(asks(session_id=session_id, epoch=1))
    cache.refuses(asks(session_id=session_id, epoch=1), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    cache.refuses(asks(session_id=session_id, epoch=3), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert cache.resumes(asks(session_id=session_id, epoch=2)) is not None


def test_after_the_largest_epoch_comes_one() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(INT32_MAX) == 1
    cache = Cache()
    session_id = cache.opens(("a", 0))
    cache.sessions._sessions[session_id].epoch = INT32_MAX  # noqa: SLF001 (two billion requests later)
    cache.resumes(asks(session_id=session_id, epoch=INT32_MAX))
    assert cache.resumes(asks(session_id=session_id, epoch=1)) is not None


def test_an_unknown_session_has_its_own_error() -> None:
    Cache().refuses(asks(session_id=77, epoch=1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def test_a_session_does_not_change_between_names_and_topic_ids() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0))
    cache.refuses(asks(session_id=session_id, epoch=1), ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, uses_topic_ids=True)


def test_a_request_changes_adds_and_forgets_partitions() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0), ("a", 1))
    request = asks(("a", 1), ("c", 5), session_id=session_id, epoch=1, forget=[("a", 0), ("z", 9)])
    request.topics[0].partitions[0].fetch_offset = 42
    session = cache.resumes(request)
    assert session is not None
    assert list(session.partitions) == [("a", 1), ("c", 5)]
    assert session.partitions["a", 1].asked.fetch_offset == 42


def test_forgetting_the_last_partition_ends_the_session() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0))
    assert cache.resumes(asks(session_id=session_id, epoch=1, forget=[("a", 0)])) is None
    cache.refuses(asks(session_id=session_id, epoch=2), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_that_names_a_session_closes_it(epoch: int) -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0))
    assert cache.resumes(asks(("a", 0), session_id=session_id, epoch=epoch)) is None
    assert len(cache.sessions) == 0


@pytest.mark.parametrize("is_follower", [True, False])
def test_a_request_of_the_wrong_kind_of_client_changes_nothing_in_a_session(is_follower: bool) -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0), is_follower=is_follower)
    session = cache.sessions.find(session_id)
    assert session is not None
    answered: list[FetchSession] = []
    session.waiting = lambda: type("Wait", (), {"answer_now": lambda _: answered.append(session)})()  # type: ignore[assignment]
    request = asks(("b", 7), session_id=session_id, epoch=1, forget=[("a", 0)])
    cache.now += 1
    cache.refuses(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, is_follower=not is_follower)
    assert (list(session.partitions), session.epoch, session.last_used_ms) == ([("a", 0)], 1, NOW)
    assert not answered
    assert cache.resumes(asks(session_id=session_id, epoch=1), is_follower=is_follower) is session


@pytest.mark.parametrize("epoch", [0, -1])
def test_only_the_same_kind_of_client_closes_a_session(epoch: int) -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0), is_follower=True)
    assert cache.resumes(asks(("a", 0), session_id=session_id, epoch=epoch)) is None
    assert len(cache.sessions) == 1
    assert cache.resumes(asks(("a", 0), session_id=session_id, epoch=epoch), is_follower=True) is None
    assert len(cache.sessions) == 0


def data(**values: Any) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(**{"high_watermark": 5, "last_stable_offset": 5, "log_start_offset": 0} | values)


def answered_once() -> SessionPartition:
    partition = SessionPartition("a", FetchRequest.FetchPartition())
    assert partition.answered(data())
    return partition


def test_an_unchanged_partition_is_left_out() -> None:
    assert not answered_once().answered(data())


@pytest.mark.parametrize(
    "change",
    [
        {"records": b"batch"},
        {"high_watermark": 6},
        {"last_stable_offset": 4},
        {"log_start_offset": 1},
        {"preferred_read_replica": 2},
        {"diverging_epoch": FetchResponse.EpochEndOffset(epoch=1, end_offset=3)},
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_change_of_a_partition_is_reported(change: dict[str, Any]) -> None:
    assert answered_once().answered(data(**change))


def test_the_end_of_an_error_is_reported_even_if_nothing_else_changed() -> None:
    partition = answered_once()
    failed = data(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert partition.answered(failed)
    assert partition.answered(failed), "an error is repeated as long as it lasts"
    assert partition.answered(data())
    assert not partition.answered(data())


def test_a_partition_with_data_moves_behind_the_others() -> None:
    cache = Cache()
    session = cache.resumes(asks(session_id=cache.opens(("a", 0), ("b", 0), ("c", 0)), epoch=1))
    assert session is not None
    session.serve_last(session.partitions["a", 0])
    assert list(session.partitions) == [("b", 0), ("c", 0), ("a", 0)]


def test_serving_a_partition_that_was_forgotten_meanwhile_does_not_bring_it_back() -> None:
    cache = Cache()
    session = cache.resumes(asks(session_id=cache.opens(("a", 0), ("b", 0)), epoch=1))
    assert session is not None
    gone = session.partitions.pop(("a", 0))
    session.serve_last(gone)
    assert list(session.partitions) == [("b", 0)]


def test_a_full_cache_declines_a_new_session_while_all_are_in_use() -> None:
    cache = Cache(slots=2)
    assert cache.opens(("a", 0))
    assert cache.opens(("b", 0))
    assert cache.opens(("c", 0), ("d", 0), ("e", 0)) == 0
    assert len(cache.sessions) == 2


def test_a_session_idle_for_two_minutes_is_evicted() -> None:
    cache = Cache(slots=2)
    stale, busy = cache.opens(("a", 0), ("a", 1)), cache.opens(("b", 0))
    cache.now += EVICTION_MS
    cache.resumes(asks(session_id=busy, epoch=1))
    cache.now += 1
    assert cache.opens(("c", 0)) != 0
    cache.refuses(asks(session_id=stale, epoch=1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert cache.resumes(asks(session_id=busy, epoch=2)) is not None


def test_an_old_session_is_evicted_only_for_a_larger_one() -> None:
    cache = Cache(slots=1)
    old = cache.opens(("a", 0), ("a", 1))
    cache.now += EVICTION_MS + 1
    cache.resumes(asks(session_id=old, epoch=1))
    assert cache.opens(("b", 0), ("b", 1)) == 0
    assert cache.opens(("b", 0), ("b", 1), ("b", 2)) != 0


def test_a_follower_evicts_a_consumer_but_not_the_other_way_round() -> None:
    cache = Cache(slots=1)
    cache.opens(("a", 0), ("a", 1))
    follower = cache.opens(("b", 0), is_follower=True)
    assert follower != 0
    cache.now += EVICTION_MS
    cache.resumes(asks(session_id=follower, epoch=1), is_follower=True)
    cache.now += 1
    assert cache.opens(*[("c", index) for index in range(50)]) == 0


def test_no_session_is_created_without_partitions_or_slots() -> None:
    assert Cache().opens() == 0
    assert Cache(slots=0).opens(("a", 0)) == 0


def test_a_session_cannot_grow_without_bound() -> None:
    cache = Cache()
    assert cache.opens(*[("a", index) for index in range(PARTITIONS_MAX + 1)]) == 0
    session_id = cache.opens(*[("a", index) for index in range(PARTITIONS_MAX)])
    assert cache.resumes(asks(("b", 0), session_id=session_id, epoch=1)) is None
    assert len(cache.sessions) == 0


def test_all_sessions_together_remember_a_limited_number_of_partitions() -> None:
    """Sessions cost nothing to open: a thousand with a hundred thousand partitions each would fill the memory."""
    cache = Cache()
    half = [("a", index) for index in range(PARTITIONS_MAX // 2)]
    first, second = cache.opens(*half), cache.opens(*half)
    assert first
    assert second
    assert cache.opens(("b", 0)) == 0, "there is no room, and both are in use"
    cache.resumes(asks(session_id=second, epoch=1, forget=[("a", 0)]))
    assert cache.opens(("b", 0)) != 0, "there is room for one again"
    assert cache.resumes(asks(("c", 0), session_id=second, epoch=2)) is None, "one too many ends the session"
    assert cache.sessions.partition_count == len(half) + 1


def test_a_stale_session_makes_room_for_many_partitions() -> None:
    cache = Cache()
    many = [("a", index) for index in range(PARTITIONS_MAX)]
    cache.opens(*many)
    cache.now += EVICTION_MS + 1
    assert cache.opens(*many) != 0
    assert (len(cache.sessions), cache.sessions.partition_count) == (1, PARTITIONS_MAX)


def test_a_session_that_its_client_ends_makes_room() -> None:
    cache = Cache()
    session_id = cache.opens(("a", 0), ("a", 1))
    cache.resumes(asks(session_id=session_id, epoch=-1))
    assert (len(cache.sessions), cache.sessions.partition_count) == (0, 0)
