"""The metadata of a client, and when it is refreshed."""

from typing import Any

from ottla.client.core.cluster_view import ClusterView, Leader, topic_failure
from ottla.client.core.model import Node
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.types import TopicPartition

ID_1, ID_2 = b"1" * 16, b"2" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def view(**options: Any) -> ClusterView:
    return ClusterView(max_age_ms=300_000, backoff=Backoff(100, 1000), **options)


def response(
    *topics: tuple[str, dict[int, tuple[int, int]]],
    topic_id: bytes = ID_1,
    error: ErrorCode = ErrorCode.NONE,
    brokers: tuple[int, ...] = (1, 2),
) -> MetadataResponse:
    """Topics as (name, {partition: (leader, epoch)})."""
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=b, host="h", port=9000 + b) for b in brokers],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                name=name,
                topic_id=topic_id,
                error_code=error,
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        partition_index=index, leader_id=leader, leader_epoch=epoch, replica_nodes=[1], isr_nodes=[1]
                    )
                    for index, (leader, epoch) in partitions.items()
                ],
            )
            for name, partitions in topics
        ],
    )


def answer(seen: ClusterView, message: MetadataResponse, now: int) -> list[str]:
    """Polls, expects a request, answers it; returns the topics asked for."""
    (request,) = seen.poll(now).requests
    asked = [topic.name for topic in request.build(13).topics]
    request.on_response(message, 13, now)
    return asked


def test_metadata_is_requested_at_once_and_again_when_it_is_stale() -> None:
    seen = view()
    seen.want("t", 0)
    assert answer(seen, response(("t", {0: (1, 5)})), 10) == ["t"]
    assert seen.find_leader(T0) == Leader(1, 5)
    later = seen.poll(11)
    assert not later.requests
    assert later.wake_at == 300_010
    assert seen.poll(300_010).requests


def test_only_one_metadata_request_is_in_flight() -> None:
    seen = view()
    assert seen.poll(0).requests
    seen.request_update()
    assert not seen.poll(1).requests


def test_an_update_requested_during_a_request_is_not_lost() -> None:
    seen = view()
    (request,) = seen.poll(0).requests
    seen.want("t", 1)
    request.on_response(response(), 13, 2)
    assert answer(seen, response(("t", {0: (1, 0)})), 2) == ["t"]


def test_a_new_topic_does_not_wait_for_the_backoff() -> None:
    seen = view()
    answer(seen, response(), 0)
    seen.want("t", 5)
    assert answer(seen, response(("t", {0: (1, 0)})), 5) == ["t"]
    seen.want("t", 6)
    seen.request_update()
    assert not seen.poll(7).requests, "asking the same again is held back"


def test_a_topic_that_the_broker_is_creating_is_asked_for_again_soon() -> None:
    """A broker answers before it has created the topic, which takes a few milliseconds."""
    unknown = response(("t", {}), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def waits(seen: ClusterView, now: int) -> list[int]:
        found = []
        for _ in range(7):
            answer(seen, unknown, now)
            wake_at = seen.poll(now).wake_at
            assert wake_at is not None
            found.append(wake_at - now)
            now = wake_at
        return found

    seen = view(allow_auto_topic_creation=True)
    seen.want("t", 0)
    assert waits(seen, 0) == [5, 10, 20, 40, 80, 100, 100]
    seen.want("another", 1000)
    assert waits(seen, 1000)[0] == 5, "another new topic is worth asking soon again"
    declining = view()
    declining.want("t", 0)
    assert waits(declining, 0)[0] == 100


def test_update_requests_are_limited_by_the_backoff() -> None:
    seen = view()
    answer(seen, response(), 0)
    seen.request_update()
    assert not seen.poll(50).requests
    assert seen.poll(50).wake_at == 100
    assert seen.poll(100).requests


def test_failures_back_off_exponentially_and_are_remembered() -> None:
    seen = view()
    now, waits = 0, []
    for _ in range(6):
        (request,) = seen.poll(now).requests
        request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "refused"), now)
        wake_at = seen.poll(now).wake_at
        assert wake_at is not None
        waits.append(wake_at - now)
        now = wake_at
    assert waits == [100, 200, 400, 800, 1000, 1000]
    assert seen.last_error is not None
    assert seen.last_error.detail == "refused"
    answer(seen, response(), now)
    assert seen.last_error is None


def test_a_stale_broker_cannot_bring_back_an_old_leader() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {0: (2, 7)})), 0)
    seen.request_update()
    answer(seen, response(("t", {0: (1, 6)})), 200)
    assert seen.find_leader(T0) == Leader(2, 7)


def test_a_recreated_topic_starts_with_new_epochs() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {0: (2, 7), 1: (2, 7)})), 0)
    seen.request_update()
    answer(seen, response(("t", {0: (1, 0)}), topic_id=ID_2), 200)
    assert seen.find_leader(T0) == Leader(1, 0)
    assert seen.find_leader(T1) is None
    assert seen.find_partition_count("t") == 1


def test_a_partition_without_a_leader_is_requested_again_soon() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {0: (-1, 3), 1: (1, 3)})), 0)
    assert seen.find_leader(T0) is None
    assert seen.led_partitions("t") == [1]
    assert answer(seen, response(("t", {0: (2, 4), 1: (1, 3)})), 100) == ["t"]
    assert seen.led_partitions("t") == [0, 1]


def test_a_missing_topic_is_remembered_and_requested_again() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {}), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0)
    assert seen.topic_errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    answer(seen, response(("t", {0: (1, 0)})), 100)
    assert seen.topic_errors == {}
    assert seen.find_partition_count("t") == 1


def test_only_a_missing_topic_is_said_not_to_exist() -> None:
    assert topic_failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t").detail == "topic t does not exist"
    assert topic_failure(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t").detail == "topic t"


def test_an_invalid_topic_is_not_requested_repeatedly() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {}), error=ErrorCode.INVALID_TOPIC_EXCEPTION), 0)
    assert seen.topic_errors == {"t": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert not seen.poll(5_000).requests


def test_a_deleted_topic_is_gone() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {0: (1, 0)})), 0)
    seen.request_update()
    answer(seen, response(("t", {}), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 200)
    assert seen.find_leader(T0) is None
    assert "t" not in seen.topics
    assert "t" not in seen.partitions


def test_an_idle_topic_is_forgotten() -> None:
    """So that requests of a producer do not recreate a deleted topic."""
    seen = view(max_idle_ms=1_000)
    seen.want("old", 0)
    seen.want("new", 0)
    answer(seen, response(("old", {0: (1, 0)}), ("new", {0: (1, 0)})), 0)
    seen.want("new", 900)
    seen.request_update()
    assert answer(seen, response(("new", {0: (1, 0)})), 1_500) == ["new"]
    assert "old" not in seen.topics


def test_the_leader_in_an_error_is_used_without_a_request() -> None:
    seen = view()
    seen.want("t", 0)
    answer(seen, response(("t", {0: (1, 3)})), 0)
    seen.learn_leader(T0, 9, 4, {9: Node(9, "h9", 9099)})
    assert seen.find_leader(T0) == Leader(9, 4)
    assert seen.brokers[9].port == 9099
    seen.learn_leader(T0, 1, 2, {})
    assert seen.find_leader(T0) == Leader(9, 4)


def test_a_response_without_brokers_is_retried() -> None:
    seen = view()
    (request,) = seen.poll(0).requests
    request.on_response(response(brokers=()), 13, 0)
    assert not seen.brokers
    assert seen.poll(100).requests


def test_only_the_kept_topics_stay() -> None:
    seen = view()
    seen.keep_only({"a", "b"}, 0)
    answer(seen, response(("a", {0: (1, 0)}), ("b", {0: (1, 0)})), 0)
    seen.keep_only({"b"}, 1)
    assert set(seen.topics) == {"b"}
