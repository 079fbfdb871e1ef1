"""Fetch sessions (KIP-227): requests name only changes, and errors start a new session."""

# ruff: noqa: SLF001  (sets up or checks internal state)

from ottla.client.consumer.fetch_session import FetchFrom, FetchSession
from ottla.types import INT32_MAX, TopicPartition

A, B, C = (TopicPartition("t", i) for i in range(3))
ID = b"i" * 16


def at(offset: int, topic_id: bytes = ID) -> FetchFrom:
    return FetchFrom(topic_id, offset, 1, -1, 1000)


def test_the_first_request_is_a_full_fetch_that_asks_for_a_session() -> None:
    session = FetchSession()
    asked = session.request({A: at(0), B: at(5)})
    assert (asked.session_id, asked.epoch) == (0, 0)
    assert asked.changed == {A: at(0), B: at(5)}
    assert not asked.forgotten


def test_incremental_requests_name_only_changed_partitions() -> None:
    session = FetchSession()
    session.request({A: at(0), B: at(5)})
    session.on_response(77)
    asked = session.request({A: at(3), B: at(5)})
    assert (asked.session_id, asked.epoch, asked.changed) == (77, 1, {A: at(3)})
    session.on_response(77)
    asked = session.request({A: at(3), B: at(5)})
    assert (asked.epoch, asked.changed) == (2, {})


def test_a_removed_partition_is_forgotten_and_may_be_added_again() -> None:
    session = FetchSession()
    session.request({A: at(0), B: at(5)})
    session.on_response(77)
    assert session.request({A: at(0)}).forgotten == {B: ID}
    session.on_response(77)
    asked = session.request({A: at(0), B: at(5), C: at(1)})
    assert asked.changed == {B: at(5), C: at(1)}
    assert not asked.forgotten


def test_a_recreated_topic_is_another_topic() -> None:
    session = FetchSession()
    session.request({A: at(9)})
    session.on_response(77)
    asked = session.request({A: at(0, b"n" * 16)})
    assert asked.changed == {A: at(0, b"n" * 16)}
    assert asked.forgotten == {A: ID}


def test_without_a_session_every_request_is_a_full_fetch() -> None:
    session = FetchSession()
    for _ in range(3):
        asked = session.request({A: at(0)})
        assert (asked.session_id, asked.epoch, asked.changed) == (0, 0, {A: at(0)})
        session.on_response(0)


def test_after_the_broker_ended_the_session_the_next_request_is_a_full_fetch() -> None:
    session = FetchSession()
    session.request({A: at(0), B: at(5)})
    session.on_response(77)
    session.on_response(0)
    assert not session.knows(A)
    asked = session.request({A: at(0)})
    assert (asked.session_id, asked.epoch, asked.changed, asked.forgotten) == (0, 0, {A: at(0)}, {})


def test_a_reset_starts_a_new_session() -> None:
    session = FetchSession()
    session.request({A: at(0)})
    session.on_response(77)
    session.reset()
    asked = session.request({A: at(0)})
    assert (asked.session_id, asked.epoch, asked.changed) == (0, 0, {A: at(0)})


def test_the_epoch_wraps_to_1() -> None:
    session = FetchSession()
    session.request({A: at(0)})
    session.on_response(77)
    session._epoch = INT32_MAX
    session.on_response(77)
    assert session.request({A: at(0)}).epoch == 1
