"""A broker whose session with the metadata store expired registers again, whatever fails meanwhile."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.metadata import records
from ottla.metadata.changes.config_changes import ConfigChange, ResourceChange
from ottla.metadata.changes.topic_changes import NewTopic, TopicReference
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import ClusterImage
from ottla.metadata.store import Create, Entry, MetadataStore, Operation, Set, StoreUnavailable
from ottla.protocol.wire_values import ConfigOperation, ConfigResourceType
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.types import TopicPartition
from tests.support.worlds.follower_world import BrokersWorld as World
from tests.support.worlds.follower_world import recording, until

NONE = ErrorCode.NONE


@pytest.fixture
def memory_world(open_memory_store: Callable[[], MetadataStore]) -> World:
    return World(open_memory_store)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.metadata.follower.RECONNECT_SECONDS", 0.001)


async def two_brokers(world: World) -> tuple[MetadataFollower, MetadataFollower]:
    """Brokers 0 and 1 with topic t, which 0 leads."""
    ann, bob = await world.start(0), await world.start(1)
    await until(ann, lambda image: len(image.brokers) == 2)
    await ann.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
    await until(bob, lambda image: "t" in image.topics)
    return ann, bob


def test_a_broker_rejoins_after_its_session_expired(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        ann, bob = await memory_world.start(0), await memory_world.start(1)
        await until(ann, lambda image: len(image.brokers) == 2)
        await ann.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
        async with recording(ann) as images:
            tree.expire(memory_world.stores[0])  # type: ignore[arg-type]
            with pytest.raises(KafkaError) as caught:
                await ann.changes.create_topics([NewTopic("too-soon")])
            assert caught.value.code == ErrorCode.NOT_CONTROLLER
            assert caught.value.retriable
            await until(ann, lambda image: image.controller_id == 1 and set(image.brokers) == {0, 1})
        assert all("t" in image.topics for image in images[1:]), "the deletion was not visible in between"
        await until(bob, lambda image: set(image.brokers) == {0, 1})
        assert ann.image.topics["t"].partitions[0].leader == 1
        assert (await ann.changes.create_topics([NewTopic("later")]))[0].error == NONE

    memory_world.run(story)


class ForgetfulStore(MemoryStore):
    """A store that fails to answer one request of the next session."""

    unanswered = ""
    """The request: "scan", "commit" after it was applied, "lost commit" before."""

    async def scan(self, prefix: str) -> list[Entry]:
        self._fail_once("scan")
        return await super().scan(prefix)

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._fail_once("lost commit")
        await super().commit(operations)
        self._fail_once("commit")

    def _fail_once(self, request: str) -> None:
        if request == self.unanswered:
            self.unanswered = ""
            raise StoreUnavailable("the metadata store did not answer")


@pytest.mark.parametrize("unanswered", ["scan", "lost commit", "commit"])
def test_a_broker_rejoins_although_the_store_did_not_answer(
    tree: MemoryTree, unanswered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is alive, but it is not known to be registered in it: it reads the metadata and registers again."""
    monkeypatch.setattr("ottla.metadata.follower.RECONNECT_SECONDS", 0.001)
    world = World(lambda: ForgetfulStore(tree))

    async def story() -> None:
        ann, bob = await world.start(0), await world.start(1)
        await until(ann, lambda image: len(image.brokers) == 2)
        forgetful = world.stores[0]
        assert isinstance(forgetful, ForgetfulStore)
        forgetful.unanswered = unanswered
        tree.expire(forgetful)
        await until(bob, lambda image: set(image.brokers) == {1})
        await until(bob, lambda image: set(image.brokers) == {0, 1})
        await bob.changes.create_topics([NewTopic("later", assignments=[(0, (0, 1))])])
        await until(ann, lambda image: "later" in image.topics and set(image.brokers) == {0, 1})
        assert forgetful.unanswered == "", "the request was made"
        assert ann.broker_epoch == bob.image.brokers[0].epoch
        assert (await ann.changes.create_topics([NewTopic("last")]))[0].error == NONE

    world.run(story)


def test_a_starting_broker_whose_registration_was_repeated_is_no_duplicate_of_itself(tree: MemoryTree) -> None:
    """A store retries a commit whose answer was lost, and finds the key that the first attempt created."""

    class RetryingStore(MemoryStore):
        has_retried = False

        async def commit(self, operations: Sequence[Operation]) -> None:
            await super().commit(operations)
            if not self.has_retried:
                self.has_retried = True
                await super().commit(operations)

    world = World(lambda: RetryingStore(tree))

    async def story() -> None:
        ann = await world.start(0)
        assert set(ann.image.brokers) == {0}
        assert ann.broker_epoch == ann.image.brokers[0].epoch
        with pytest.raises(OttlaError, match=r"node\.id 0"):
            await world.start(0)

    world.run(story)


class PausingStore(MemoryStore):
    """A store whose answers to scans or commits can be held back."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.answers = {"scan": asyncio.Event(), "commit": asyncio.Event()}
        self.asked = {"scan": asyncio.Event(), "commit": asyncio.Event()}
        for event in self.answers.values():
            event.set()

    async def scan(self, prefix: str) -> list[Entry]:
        await self._pause("scan")
        return await super().scan(prefix)

    async def commit(self, operations: Sequence[Operation]) -> None:
        await self._pause("commit")
        await super().commit(operations)

    async def _pause(self, request: str) -> None:
        self.asked[request].set()
        await self.answers[request].wait()


@pytest.mark.parametrize("request_", ["scan", "commit"])
def test_a_broker_that_rejoins_must_not_commit_before_it_knows_the_new_leaders(tree: MemoryTree, request_: str) -> None:
    """Its new session is confirmed by the store, but in the meantime another broker was elected."""
    world = World(lambda: PausingStore(tree))

    async def story() -> None:
        ann, bob = await two_brokers(world)
        assert ann.is_session_confirmed
        store = world.stores[0]
        assert isinstance(store, PausingStore)
        store.answers[request_].clear()
        store.asked[request_].clear()
        tree.expire(store)
        await until(bob, lambda image: image.topics["t"].partitions[0].leader == 1)
        await store.asked[request_].wait()
        assert store.is_confirmed
        assert ann.image.topics["t"].partitions[0].leader == 0
        assert not ann.is_session_confirmed
        store.answers[request_].set()
        await until(ann, lambda image: image.topics["t"].partitions[0].leader == 1 and 0 in image.brokers)
        await ann.applied()
        await asyncio.sleep(0)
        assert ann.is_session_confirmed

    world.run(story)


def test_a_broker_that_rejoins_must_not_commit_before_it_has_applied_the_new_leaders(
    memory_world: World, tree: MemoryTree
) -> None:
    async def story() -> None:
        ann, bob = await two_brokers(memory_world)
        applied = asyncio.Event()
        applying = asyncio.Event()

        async def apply() -> None:
            applying.set()
            await applied.wait()

        ann.subscribe(lambda image: apply() if image.topics["t"].partitions[0].leader == 1 else None)
        tree.expire(memory_world.stores[0])  # type: ignore[arg-type]
        await until(bob, lambda image: image.topics["t"].partitions[0].leader == 1)
        await applying.wait()
        await until(bob, lambda image: set(image.brokers) == {0, 1})
        assert not ann.is_session_confirmed
        applied.set()
        await ann.applied()
        await asyncio.sleep(0)
        assert ann.is_session_confirmed

    memory_world.run(story)


def test_requests_are_not_decided_from_an_empty_image_while_a_broker_rejoins(tree: MemoryTree) -> None:
    """It must not find that a topic is missing, or create it again, because it has not read the metadata yet."""
    world = World(lambda: PausingStore(tree))

    async def story() -> None:
        ann, _ = await two_brokers(world)
        store = world.stores[0]
        assert isinstance(store, PausingStore)
        store.answers["scan"].clear()
        store.asked["scan"].clear()
        tree.expire(store)
        await store.asked["scan"].wait()
        creating = asyncio.ensure_future(ann.changes.create_topics([NewTopic("t")]))
        deleting = asyncio.ensure_future(ann.changes.delete_topics([TopicReference("t")]))
        store.answers["scan"].set()
        assert [each.error for each in await creating] == [ErrorCode.TOPIC_ALREADY_EXISTS]
        assert [each.error for each in await deleting] == [NONE]
        await until(ann, lambda image: "t" not in image.topics and set(image.brokers) == {0, 1})

    world.run(story)


@pytest.mark.parametrize("is_reading", [True, False])
def test_requests_are_not_decided_from_an_image_older_than_the_session(
    tree: MemoryTree, monkeypatch: pytest.MonkeyPatch, is_reading: bool
) -> None:
    """A topic that was deleted and created again has the versions of the old one, so a commit would succeed."""
    world = World(lambda: PausingStore(tree))
    change = ResourceChange(ConfigResourceType.TOPIC, "t", [ConfigChange("segment.ms", "100000", ConfigOperation.SET)])

    async def story() -> None:
        ann, bob = await two_brokers(world)
        store = world.stores[0]
        assert isinstance(store, PausingStore)
        tree.stores.pop(store.session_id)  # its watch does not get the deletion
        await bob.changes.delete_topics([TopicReference("t")])
        again = NewTopic("t", assignments=[(0, (1,))], configs=[("cleanup.policy", "compact")])
        await bob.changes.create_topics([again])
        store.answers["scan"].clear()
        store.asked["scan"].clear()
        altering: list[asyncio.Future[Any]] = []

        def alter() -> None:
            altering.append(asyncio.ensure_future(ann.changes.incremental_alter_configs([change])))

        if not is_reading:
            # The session has begun, and nothing has been read in it yet.
            start = store.start

            async def start_and_alter() -> None:
                await start()
                alter()
                await asyncio.sleep(0)

            monkeypatch.setattr(store, "start", start_and_alter)
        tree.expire(store)
        await store.asked["scan"].wait()
        if is_reading:
            alter()
        store.answers["scan"].set()
        (outcome,) = await asyncio.gather(*altering, return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, KafkaError)
            assert outcome.code == ErrorCode.NOT_CONTROLLER
            assert outcome.retriable
        await until(ann, lambda image: image.topics["t"] == bob.image.topics["t"])
        configs = bob.image.topics["t"].configs
        assert dict(configs) == {"cleanup.policy": "compact"} | ({"segment.ms": "100000"} if is_reading else {})

    world.run(story)


def test_a_broker_forgets_what_was_removed_while_it_had_no_session(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        ann, bob = await two_brokers(memory_world)
        await bob.changes.create_topics([NewTopic("u", assignments=[(0, (1,)), (1, (0,))])])
        store = memory_world.stores[0]
        assert isinstance(store, MemoryStore)
        tree.stores.pop(store.session_id)  # its watch does not get the deletion
        await bob.changes.delete_topics([TopicReference("t"), TopicReference("u")])
        await bob.changes.create_topics([NewTopic("u", assignments=[(0, (1,))])])
        tree.expire(store)
        await until(ann, lambda image: "t" not in image.topics and set(image.brokers) == {0, 1})
        assert ann.image.topics["u"] == bob.image.topics["u"]
        assert (await ann.changes.create_topics([NewTopic("t")]))[0].error == NONE

    memory_world.run(story)


def test_an_unreadable_entry_keeps_no_broker_from_rejoining(
    memory_world: World, tree: MemoryTree, caplog: pytest.LogCaptureFixture
) -> None:
    """After an outage of the store all brokers rejoin: one bad entry must not stop the cluster."""

    async def story() -> None:
        ann, bob = await two_brokers(memory_world)
        before = ann.image.topics["t"]
        await memory_world.stores[1].commit([Set("/brokers/topics/t", b"rubbish")])
        for follower, store in ((ann, memory_world.stores[0]), (bob, memory_world.stores[1])):
            rejoined = _has_newer_epoch(follower)
            tree.expire(store)  # type: ignore[arg-type]
            await until(follower, rejoined)
        for follower in (ann, bob):
            await until(follower, lambda image: set(image.brokers) == {0, 1})
            assert follower.image.topics["t"].topic_id == before.topic_id
        assert "metadata entry ignored, because it is invalid: /brokers/topics/t" in caplog.text

    memory_world.run(story)


def _has_newer_epoch(follower: MetadataFollower) -> Callable[[ClusterImage], bool]:
    broker_id, epoch = follower.broker_id, follower.broker_epoch
    return lambda image: broker_id in image.brokers and image.brokers[broker_id].epoch > epoch


def test_a_starting_broker_that_waits_for_its_predecessor_ignores_only_the_unreadable_entry(tree: MemoryTree) -> None:
    """What is committed together with it is not lost."""

    waiting = asyncio.Event()

    class PatientStore(MemoryStore):
        dead_sessions_linger = True

        async def sync(self) -> None:
            waiting.set()
            await super().sync()

    world = World(lambda: PatientStore(tree))

    async def story() -> None:
        await two_brokers(world)
        starting = asyncio.get_running_loop().create_task(world.start(0))
        await waiting.wait()
        state = records.write_partition_state(1, 7, (1,), 1)
        await world.stores[1].commit(
            [Create("/brokers/topics/broken", b"{"), Set("/brokers/topics/t/partitions/0/state", state)]
        )
        await world.crash(0)
        again = await starting
        assert again.image.topics["t"].partitions[0].leader_epoch >= 7

    world.run(story)


def test_the_report_of_logs_is_repeated_until_it_is_stored(tree: MemoryTree) -> None:
    """Until then a partition without an in-sync replica has no leader."""

    class Failing(MemoryStore):
        failures = 0

        async def commit(self, operations: Sequence[Operation]) -> None:
            keys = [operation.key for operation in operations]
            is_report = any("/partitions/" in key for key in keys) and records.broker_key(0) not in keys
            if is_report and self.failures:
                self.failures -= 1
                raise StoreUnavailable("the metadata store did not answer")
            await super().commit(operations)

    world = World(lambda: Failing(tree))

    async def story() -> None:
        await two_brokers(world)
        await world.crash(0)
        await world.crash(1)
        ann = await world.start(0)
        (waiting,) = ann.image.topics["t"].partitions[0].recovering
        assert (waiting.broker_id, waiting.end_offset) == (0, -1)
        store = world.stores[0]
        assert isinstance(store, Failing)
        store.failures = 2
        with pytest.raises(KafkaError):
            await ann.report_logs(lambda: {TopicPartition("t", 0): (3, 42)})
        tree.expire(store)
        await until(ann, lambda image: any(r.end_offset == 42 for r in image.topics["t"].partitions[0].recovering))
        assert store.failures == 0

    world.run(story)


def test_a_leaving_broker_whose_session_expires_does_not_register_again(memory_world: World, tree: MemoryTree) -> None:
    """Others have replaced it. If it came back, they would have to replace it once more."""

    async def story() -> None:
        ann, bob = await two_brokers(memory_world)
        assert await ann.leave(5_000) == 1
        tree.expire(memory_world.stores[0])  # type: ignore[arg-type]
        await until(bob, lambda image: set(image.brokers) == {1})
        for _ in range(100):
            await asyncio.sleep(0)
        assert set(bob.image.brokers) == {1}
        assert memory_world.stores[0].session_id == 0
        assert await ann.leave(5_000) == 0

    memory_world.run(story)
