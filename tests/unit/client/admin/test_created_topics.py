"""create_topic() in a simulated cluster: it returns when every broker knows the topic."""

# ruff: noqa: SLF001 - asks single brokers

import pytest

from ottla import NewTopic
from ottla.client.admin.topics import KNOWN_TIMEOUT_MS, _metadata_request
from ottla.protocol.api import ApiKey
from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed


@each_seed(5)
def test_every_broker_knows_a_topic_when_create_topic_returns(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        admin = world.admin()
        for number in range(5):
            name = f"topic-{number}"
            await admin.create_topic(name, partitions=3)
            for node in world.up:
                request = admin._network.request
                answer = await request(ApiKey.METADATA, _metadata_request([name]), destination=node.id)
                (topic,) = answer.message.topics
                assert (topic.error_code, len(topic.partitions)) == (0, 3), f"broker {node.id} does not know it"
                assert all(partition.leader_id >= 0 for partition in topic.partitions)
        await admin.close()

    ClusterWorld(seed, brokers=3).run(story)


def test_a_broker_that_does_not_answer_delays_create_topic_for_a_limited_time() -> None:
    async def story(world: ClusterWorld) -> None:
        admin = world.admin(request_timeout_ms=2_000)
        await admin.create_topic("first", partitions=1)
        silent = next(node for node in world.up if node is not world.controller)
        silent.pause()
        started = world.loop.time()
        await admin.create_topic("second", partitions=1, replication_factor=1)
        assert world.loop.time() - started <= (KNOWN_TIMEOUT_MS + 2_000) / 1000
        silent.resume()
        await admin.close()

    ClusterWorld(1, brokers=3).run(story)


@pytest.mark.parametrize("validate_only", [True, False])
def test_only_topics_that_were_created_are_waited_for(validate_only: bool) -> None:
    async def story(world: ClusterWorld) -> None:
        admin = world.admin()
        started = world.loop.time()
        await admin.create_topics([NewTopic("a", 1), NewTopic("b", 2)], validate_only=validate_only)
        assert world.loop.time() - started < 5
        known = {topic.name for topic in await admin.list_topics()}
        assert ({"a", "b"} <= known) is not validate_only
        await admin.close()

    ClusterWorld(2, brokers=3).run(story)
