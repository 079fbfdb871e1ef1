"""Spec: R1. The transactional copier with real processes and real kills, with librdkafka and with Ottla's client.

Small in a test run; OTTLA_COPIES=100000 OTTLA_BOUNCES=20 for the size of the recipe. The output equals the input as
a set, nothing is duplicated, order is kept, and a reader that ran all the time saw the same.
"""

import os
from pathlib import Path

import pytest

from ottla import Broker
from tests.support.processes.copying import LIBRDKAFKA, OWN, check_copy, deadline_s

COPIES = int(os.environ.get("OTTLA_COPIES", "2000"))
BOUNCES = int(os.environ.get("OTTLA_BOUNCES", "3"))
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}


@pytest.mark.timeout(2 * deadline_s(COPIES))
@pytest.mark.parametrize(
    ("module", "bounced", "hard", "partitions", "in_group"),
    [
        pytest.param(LIBRDKAFKA, "broker", True, 1, False, id="broker killed"),
        pytest.param(LIBRDKAFKA, "broker", False, 3, True, id="broker restarted"),
        pytest.param(LIBRDKAFKA, "clients", True, 3, True, id="clients killed"),
        pytest.param(LIBRDKAFKA, "clients", False, 2, False, id="clients stopped"),
        pytest.param(OWN, "broker", True, 3, True, id="broker killed, own client"),
        pytest.param(OWN, "clients", True, 3, True, id="clients killed, own client"),
    ],
)
def test_the_copy_is_exact(
    tmp_path: Path, module: str, bounced: str, hard: bool, partitions: int, in_group: bool
) -> None:
    with Broker.embedded(data=tmp_path, settings=SETTINGS) as broker:

        def bounce() -> None:
            if hard:
                broker.kill()
            broker.restart()

        check_copy(
            broker.bootstrap,
            module,
            partitions=partitions,
            in_group=in_group,
            count=COPIES,
            bounces=BOUNCES,
            bounce_broker=bounce if bounced == "broker" else None,
            hard=hard,
        )
