"""Brokers of a cluster with an authorizer: they replicate, and end transactions, only with CLUSTER_ACTION."""

import pytest

from ottla.errors import KafkaError
from ottla.security.acls import AccessControlEntry, AclBinding, ResourcePattern
from ottla.security.resources import CLUSTER_NAME, Operation, PermissionType, ResourceType
from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)


def allow(operation: Operation) -> AclBinding:
    return AclBinding(CLUSTER, AccessControlEntry("User:ANONYMOUS", "*", operation, PermissionType.ALLOW))


def in_sync(world: ClusterWorld, topic: str) -> int:
    return len(world.image.topics[topic].partitions[0].isr)


@each_seed(1)
def test_followers_that_may_not_act_for_the_cluster_fall_behind_until_they_may(seed: int) -> None:
    """Every broker follows a change of ACLs, whichever of them made it."""

    async def story(world: ClusterWorld) -> None:
        async with world.admin() as admin:
            await admin.create_topic("orders", partitions=1, replication_factor=3)
            async with world.producer(acks="all") as producer:
                await producer.send_and_wait("orders", b"1")
                # From now on the cluster has an ACL, so that not everyone may do everything with it.
                await admin.create_acls([allow(Operation.ALTER), allow(Operation.DESCRIBE)])
                with pytest.raises(KafkaError):
                    await producer.send_and_wait("orders", b"2")
                await world.until(lambda: in_sync(world, "orders") == 1, "the followers are out of sync")
                await admin.create_acls([allow(Operation.CLUSTER_ACTION)])
                await world.until(lambda: in_sync(world, "orders") == 3, "the followers are back")
                await producer.send_and_wait("orders", b"3")

    world = ClusterWorld(
        seed,
        authorizer_class_name=AUTHORIZER,
        allow_everyone_if_no_acl_found="true",
        min_insync_replicas="2",
        replica_lag_time_max_ms="2000",
    )
    world.run(story)


@each_seed(1)
def test_a_cluster_of_super_users_replicates_and_ends_transactions(seed: int) -> None:
    """Markers and verification go from broker to broker."""

    async def story(world: ClusterWorld) -> None:
        async with world.admin() as admin:
            await admin.create_topic("orders", partitions=6, replication_factor=3)
        async with world.producer(transactional_id="t", acks="all") as producer:
            await producer.init_transactions()
            for number in range(3):
                await producer.begin_transaction()
                for partition in range(6):
                    await producer.send("orders", b"%d" % number, partition=partition)
                await producer.commit_transaction()
        async with world.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            await consumer.assign([("orders", partition) for partition in range(6)])
            values: list[bytes] = []
            while len(values) < 18:
                values += [record.value or b"" for record in await consumer.poll(10_000)]
            assert sorted(values) == sorted([b"0", b"1", b"2"] * 6)

    world = ClusterWorld(seed, authorizer_class_name=AUTHORIZER, super_users="User:ANONYMOUS")
    world.run(story)
