"""Leader epochs on a running broker (KIP-320): committed with the offset, so that lost records are detected."""

from typing import Any

import pytest

from ottla import Admin, Broker, Consumer, Producer
from ottla.client.core.model import CommittedOffset
from ottla.types import TopicPartition
from tests.support.waiting import eventually


@pytest.fixture
def mortal(topic: str) -> Any:
    with Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        yield broker


def write(bootstrap: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in numbers:
            producer.send(topic, f"{number}")


def read(reader: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def is_there() -> bool:
        found.extend(int(record.value or b"") for record in reader.poll(200))
        return len(found) >= count

    eventually(is_there)
    return found


def test_commits_include_the_epoch_and_lost_records_are_detected(mortal: Any, topic: str) -> None:
    """Each broker start begins a new leader epoch. A commit with an older epoch, beyond that epoch's end, points to
    lost records."""
    place, settings = TopicPartition(topic, 0), {"bootstrap_servers": mortal.bootstrap, "group_id": topic}
    write(mortal.bootstrap, topic, range(5))
    with (
        Consumer(None, **settings, auto_offset_reset="earliest") as reader,
        Admin(bootstrap_servers=mortal.bootstrap) as admin,
    ):
        reader.subscribe([topic])
        assert read(reader, 5) == list(range(5))
        reader.commit()
        first = admin.list_group_offsets(topic)[place]
        assert first.offset == 5
        assert first.leader_epoch >= 0
        reader.commit({place: 3})
        assert admin.list_group_offsets(topic)[place] == CommittedOffset(3, first.leader_epoch)
        reader.commit({place: 99})
        assert admin.list_group_offsets(topic)[place] == CommittedOffset(99), "nobody here has read that far"
    mortal.restart()
    write(mortal.bootstrap, topic, range(5, 12))
    with Admin(bootstrap_servers=mortal.bootstrap) as admin:
        # As if 5 to 8 of the old epoch had been read and committed, and were then lost with the old leader.
        admin.alter_group_offsets(topic, {place: CommittedOffset(9, first.leader_epoch)})
        with Consumer(None, **settings, auto_offset_reset="latest") as reader:
            reader.subscribe([topic])
            assert read(reader, 7) == list(range(5, 12)), "what took their place is read, and nothing skipped"
            reader.commit()
        assert admin.list_group_offsets(topic)[place].leader_epoch > first.leader_epoch
        with Consumer(bootstrap_servers=mortal.bootstrap, auto_offset_reset="latest") as alone:
            alone.assign([place])
            alone.seek(place, CommittedOffset(9, first.leader_epoch))  # what committed() gave, passed on as it is
            assert read(alone, 7) == list(range(5, 12))
