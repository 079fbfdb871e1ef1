"""auto.offset.reset=by_duration (KIP-1106): a consumer without a position starts a duration before now."""

from typing import Any

import pytest

from ottla import Admin, Consumer, Producer
from ottla.clock import system_clock

HOUR_MS = 3_600_000


@pytest.fixture
def hours_ago(broker: Any, topic: str) -> str:
    """Records of five, three and one hours ago."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    now = system_clock()
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for hours in (5, 3, 1):
            producer.send_and_wait(topic, str(hours), timestamp=now - hours * HOUR_MS)
    return topic


@pytest.mark.parametrize(
    ("duration", "position"),
    [("P1D", 0), ("P100000D", 0), ("PT4H", 1), ("PT1H30M", 2), ("PT30M", 3), ("PT0S", 3)],
)
@pytest.mark.parametrize("group", [None, "group"])
def test_reading_starts_at_the_duration_before_now_or_at_the_end_if_all_records_are_older(
    broker: Any, hours_ago: str, duration: str, position: int, group: str | None
) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "auto.offset.reset": f"by_duration:{duration}",
        "group.id": group and f"{group}-{hours_ago}",
    }
    with Consumer(settings) as consumer:
        consumer.assign([(hours_ago, 0)])
        assert consumer.position((hours_ago, 0)) == position
