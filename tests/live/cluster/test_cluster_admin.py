"""Admin calls about groups and transactions when a broker has just been lost: its successors answer."""

import pytest

from ottla import Admin, Consumer, Producer
from tests.support.processes.cluster import TRANSACTION, OttlaCluster
from tests.support.waiting import stretched

pytestmark = [pytest.mark.slow]


def test_groups_and_transactions_are_listed_without_waiting_for_a_dead_broker(
    cluster: OttlaCluster, topic: str
) -> None:
    cluster.create_topic(topic, 1)
    names = [f"{topic}-{number}" for number in range(5)]
    for name in names:
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
        with Consumer(bootstrap_servers=cluster.bootstrap, group_id=name) as consumer:
            consumer.commit({(topic, 0): 0})
    quick = {"default.api.timeout.ms": stretched(20_000), "request.timeout.ms": stretched(10_000)}
    with Admin(quick, bootstrap_servers=cluster.bootstrap) as admin:
        admin.list_groups()
        for lost in (cluster.coordinator(names[0]), cluster.coordinator(names[1], TRANSACTION)):
            cluster.restore()
            for internal in ("__consumer_offsets", "__transaction_state"):
                cluster.await_in_sync(internal)
            cluster.nodes[lost].kill()
            groups = {group.group_id for group in admin.list_groups()}
            transactions = {listing.transactional_id for listing in admin.list_transactions()}
            assert groups >= set(names)
            assert transactions >= set(names)
