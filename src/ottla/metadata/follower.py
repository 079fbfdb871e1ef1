"""OWNER of this broker's membership in the cluster: registers it, follows the store, publishes each new image.

Any broker can change topics and settings: it decides from its current image, and the commit succeeds only if the
keys involved are unchanged. If another broker was faster, it decides again. Only the controller, elected with an
ephemeral key, elects new partition leaders when brokers join or leave.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.metadata import elections, records
from ottla.metadata.decisions import Decision, Put
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage
from ottla.metadata.store import (
    Change,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    Operation,
    SessionExpired,
    Set,
    StoreUnavailable,
)
from ottla.types import ZERO_UUID, uuid4_from, uuid_to_text

if TYPE_CHECKING:
    from ottla.metadata.config_changes import ResourceChange, ResourceResult
    from ottla.metadata.controller import MorePartitions, NewTopic, Rules, TopicReference, TopicResult
    from ottla.metadata.features import FeatureUpdate

log = logging.getLogger("ottla.metadata")

R = TypeVar("R")
Decide = Callable[[ClusterImage], Decision[R]]
Subscriber = Callable[[ClusterImage], "Awaitable[None] | None"]

MAX_ATTEMPTS = 50
"""How often a change is retried because other brokers changed the same keys."""
RECONNECT_SECONDS = 1.0
CREATING_MAX = 1000
"""Topics that are created in the background at the same time. A metadata request can name any number of them."""
CREATED_AT_ONCE = 10
"""Of these, so that other requests are served in between."""


class MetadataFollower:
    """One broker's view of the cluster, and the calls to change it."""

    def __init__(self, store: MetadataStore, rules: "Rules", *, clock: Clock = system_clock) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._registration: BrokerRegistration | None = None
        self._published = NO_IMAGE
        self._image = NO_IMAGE
        """The basis of decisions; differs from the published image only while joining."""
        self._versions: dict[str, int] = {}
        self._producer_ids = range(0)
        self._subscribers: list[Subscriber] = []
        self._unfinished: dict[Subscriber, asyncio.Future[None]] = {}
        self._creating: dict[str, asyncio.Task[list[TopicResult]]] = {}
        self._lock = asyncio.Lock()
        self._duties_due = asyncio.Event()
        self._duties: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], None] = lambda: None
        self._publishing = False

    @property
    def image(self) -> ClusterImage:
        """The last published image."""
        return self._published

    @property
    def broker_id(self) -> int:
        return -1 if self._registration is None else self._registration.broker_id

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every new image, in order, starting with the current one.

        It may return an awaitable: changes that this broker makes wait for it.
        """
        self._subscribers.append(subscriber)
        if self._publishing:
            self._pass_to(subscriber)
        return lambda: self._subscribers.remove(subscriber) if subscriber in self._subscribers else None

    # Joining and leaving the cluster

    async def start(self, registration: BrokerRegistration) -> None:
        """Registers this broker. The first image is published before this returns."""
        self._registration = registration
        self._store.on_expired = self._duties_due.set
        self._stop_watching = self._store.watch("/", self._on_changes)
        try:
            await self._join()
        except BaseException:
            self._stop_watching()
            await self._store.close()
            raise
        self._duties = asyncio.get_running_loop().create_task(self._do_duties())

    async def stop(self) -> None:
        """Transfers leadership to other in-sync replicas, where there are any, and leaves the cluster."""
        if self._duties is not None:
            self._duties.cancel()
            await asyncio.gather(self._duties, return_exceptions=True)
            self._duties = None
        await asyncio.gather(*set(self._creating.values()), return_exceptions=True)
        try:
            await self._submit(
                lambda image: elections.elect_leaders(
                    image, self._rules.allows_unclean_election, leaving=(self.broker_id,)
                ),
                repeatable=True,
            )
        except KafkaError as error:
            log.warning("broker %d: cannot transfer leadership: %s", self.broker_id, error)
        self._stop_watching()
        await self._store.close()

    async def _join(self) -> None:
        registration = self._registration
        assert registration is not None
        self._publishing = False
        self._image, self._versions = NO_IMAGE, {}
        await self._store.start()
        try:
            entries = await self._store.scan("/")
            self._on_changes([Change(entry.key, entry, entry.modified) for entry in entries])
        except records.RecordError as error:
            raise OttlaError(f"cannot read the stored metadata: {error}") from error
        new_cluster_id = uuid_to_text(new_topic_id())
        loop_time = asyncio.get_running_loop().time
        patience_ms = self._store.session_timeout_ms if self._store.dead_sessions_linger else 0
        waited_until = loop_time() + patience_ms / 1000
        while True:
            self._publishing = True
            try:
                await self._submit(
                    lambda image: elections.register(image, registration, new_cluster_id, self._clock()),
                    repeatable=True,
                )
                break
            except KafkaError as error:
                self._publishing = False
                if error.code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    raise
                if loop_time() >= waited_until:
                    raise OttlaError(error.detail, "Give each broker its own node.id.") from None
            await asyncio.sleep(RECONNECT_SECONDS)
            await self._store.sync()
        log.info(
            "broker %d registered (cluster %s, controller %d, %d topics)",
            registration.broker_id,
            self._image.cluster_id,
            self._image.controller_id,
            len(self._image.topics),
        )
        self._duties_due.set()

    # Following

    def _on_changes(self, changes: Sequence[Change]) -> None:
        versions = self._versions
        for key, entry, _ in changes:
            if entry is None:
                versions.pop(key, None)
            else:
                versions[key] = entry.version
        before = self._image
        revision = max((change.revision for change in changes), default=before.version)
        version = max(revision, before.version + 1)
        try:
            image = before.apply(changes, version)
        except records.RecordError:
            if not self._publishing:
                raise
            # A running broker ignores entries that it cannot read; a starting one fails.
            image = before.apply([change for change in changes if _is_readable(change)], version)
        self._image = image
        if not self._publishing or image is before:
            return
        self._published = image
        if image.controller_id == -1 or image.brokers != before.brokers:
            self._duties_due.set()
        if image.controller_id != before.controller_id:
            log.info("controller is now broker %d", image.controller_id)
        for subscriber in list(self._subscribers):
            try:
                self._pass_to(subscriber)
            except Exception:
                # A failing subscriber must not affect the others.
                log.exception("image %d: a subscriber failed to apply it", image.version)

    def _pass_to(self, subscriber: Subscriber) -> None:
        unfinished = subscriber(self._published)
        if unfinished is not None:
            self._unfinished[subscriber] = asyncio.ensure_future(unfinished)

    async def applied(self) -> None:
        """Returns when the subscribers have applied the current image."""
        while self._unfinished:
            subscriber, unfinished = next(iter(self._unfinished.items()))
            await asyncio.wait([unfinished])
            if self._unfinished.get(subscriber) is unfinished:
                del self._unfinished[subscriber]

    async def _do_duties(self) -> None:
        """Runs when a broker joins or leaves, or the session expires; sleeps otherwise."""
        while True:
            await self._duties_due.wait()
            self._duties_due.clear()
            try:
                if not self._store.session_id:
                    await self._join()
                await self._submit(
                    lambda image: elections.become_controller(image, self.broker_id, self._clock()), repeatable=True
                )
                if self._image.controller_id == self.broker_id:
                    changed = await self._submit(
                        lambda image: elections.elect_leaders(image, self._rules.allows_unclean_election),
                        repeatable=True,
                    )
                    if changed:
                        log.info(
                            "controller %d: %d partitions have new leaders or in-sync sets", self.broker_id, changed
                        )
            except Exception:
                log.exception("broker %d: cannot update cluster metadata, will be retried", self.broker_id)
                await asyncio.sleep(RECONNECT_SECONDS)
                self._duties_due.set()

    # Deciding

    async def _submit(self, decide: Decide[R], *, repeatable: bool = False) -> R:
        """Decides from the current image and commits. Subscribers have applied the changes when this returns.
        `repeatable` decisions are made again in every session."""
        reply = await self._decide_and_commit(
            decide, self._store.commit_repeatable if repeatable else self._store.commit
        )
        await self.applied()
        return reply

    async def _decide_and_commit(self, decide: Decide[R], commit: Callable[[list[Operation]], Awaitable[None]]) -> R:
        async with self._lock:
            for _ in range(MAX_ATTEMPTS):
                decision = decide(self._image)
                if not decision.changes:
                    return decision.reply
                try:
                    await commit(self._operations(decision))
                    return decision.reply
                except Conflict:
                    await self._catch_up()
                except (SessionExpired, StoreUnavailable) as error:
                    raise _cannot_commit(error) from error
            raise _not_now(f"other brokers changed the metadata concurrently, {MAX_ATTEMPTS} attempts failed")

    async def _catch_up(self) -> None:
        try:
            await self._store.sync()
        except SessionExpired as error:
            raise _cannot_commit(error) from error

    def _operations(self, decision: Decision[Any]) -> list[Operation]:
        versions = self._versions
        operations: list[Operation] = []
        for change in decision.changes:
            if isinstance(change, Put):
                key, value, ephemeral = change
                if ephemeral or key not in versions:
                    operations.append(Create(key, value, ephemeral))
                else:
                    operations.append(Set(key, value, versions[key]))
            elif change.key in versions:
                operations.append(Delete(change.key, versions[change.key]))
        return operations

    # What handlers call

    async def create_topics(self, topics: "Sequence[NewTopic]", *, validate_only: bool = False) -> "list[TopicResult]":
        from ottla.metadata import controller  # imported on first use, for a quick start

        results = await self._submit(
            lambda image: controller.create_topics(
                image, topics, self._rules, new_topic_id, validate_only=validate_only
            )
        )
        for result in results:
            if result.error == ErrorCode.NONE and not validate_only:
                log.info("topic %s created: %d partitions", result.name, result.partitions)
        return results

    def start_creating(self, topics: "Iterable[NewTopic]") -> "list[TopicResult]":
        """Creates topics in the background. Returns at once what is wrong with them, or that they will be created."""
        from ottla.metadata import controller

        missing = [topic for topic in topics if topic.name not in self._creating]
        # Clients ask again for topics that are still unknown.
        missing = missing[: max(0, CREATING_MAX - len(self._creating))]
        results = controller.create_topics(self._image, missing, self._rules, new_topic_id).reply
        possible = {result.name for result in results if result.error == ErrorCode.NONE}
        wanted = [topic for topic in missing if topic.name in possible]
        for start in range(0, len(wanted), CREATED_AT_ONCE):
            self._create_once(wanted[start : start + CREATED_AT_ONCE]).add_done_callback(_log_failure)
        return results

    def _create_once(self, topics: "Sequence[NewTopic]") -> "asyncio.Task[list[TopicResult]]":
        """Others can wait for the same creation."""
        task = asyncio.get_running_loop().create_task(self.create_topics(topics))
        for topic in topics:
            self._creating[topic.name] = task
        task.add_done_callback(lambda _: [self._creating.pop(topic.name, None) for topic in topics])
        return task

    async def ensure_topics(self, topics: "Iterable[NewTopic]") -> "list[TopicResult]":
        """Creates topics on first use. Concurrent calls for the same topic share one creation."""
        asked = {topic.name: topic for topic in topics}
        missing = [topic for name, topic in asked.items() if name not in self._creating]
        if missing:
            self._create_once(missing)
        results = []
        for task in dict.fromkeys(self._creating[name] for name in asked):
            # Shielded: other callers may wait for the same creation.
            results += await asyncio.shield(task)
        return [result for result in results if result.name in asked]

    async def create_partitions(
        self, requests: "Sequence[MorePartitions]", *, validate_only: bool = False
    ) -> "list[TopicResult]":
        from ottla.metadata import controller

        return await self._submit(
            lambda image: controller.create_partitions(image, requests, validate_only=validate_only)
        )

    async def delete_topics(self, references: "Sequence[TopicReference]") -> "list[TopicResult]":
        from ottla.metadata import controller

        results = await self._submit(lambda image: controller.delete_topics(image, references, self._rules))
        for result in results:
            if result.error == ErrorCode.NONE:
                log.info("topic %s deleted", result.name)
        return results

    async def alter_configs(
        self, requests: "Sequence[ResourceChange]", *, validate_only: bool = False
    ) -> "list[ResourceResult]":
        return await self._alter_configs(requests, incremental=False, validate_only=validate_only)

    async def incremental_alter_configs(
        self, requests: "Sequence[ResourceChange]", *, validate_only: bool = False
    ) -> "list[ResourceResult]":
        return await self._alter_configs(requests, incremental=True, validate_only=validate_only)

    async def _alter_configs(
        self, requests: "Sequence[ResourceChange]", *, incremental: bool, validate_only: bool
    ) -> "list[ResourceResult]":
        from ottla.metadata import config_changes

        return await self._submit(
            lambda image: config_changes.alter_configs(
                image, requests, self._rules, self.broker_id, incremental=incremental, validate_only=validate_only
            )
        )

    async def update_features(self, updates: "Sequence[FeatureUpdate]", *, validate_only: bool = False) -> None:
        """Raises INVALID_UPDATE_VERSION if one of the levels cannot be set; then none is."""
        from ottla.metadata import features

        before = self._image.features
        await self._submit(lambda image: features.update_features(image, updates, validate_only=validate_only))
        for name, level in self._image.features.items():
            if before.get(name) != level:
                log.info("feature %s is now at level %d", name, level)

    async def allocate_producer_ids(self, count: int = 1) -> int:
        """The first of `count` producer ids that are unique in the cluster."""
        while len(self._producer_ids) < count:
            await self._take_producer_id_block(count)
        first = self._producer_ids.start
        self._producer_ids = self._producer_ids[count:]
        return first

    async def _take_producer_id_block(self, count: int) -> None:
        from ottla.metadata import controller

        async with self._lock:
            if len(self._producer_ids) >= count:
                return
            for _ in range(MAX_ATTEMPTS):
                try:
                    stored = await self._store.get(records.PRODUCER_ID_BLOCK)
                    decision = controller.next_producer_id_block(
                        self.broker_id, None if stored is None else stored.value, count
                    )
                    (put,) = decision.changes
                    assert isinstance(put, Put)
                    # Compared with the entry that the block was computed from, not with the newest one seen: it may
                    # have changed in between, and two brokers would give out the same producer ids.
                    await self._store.commit(
                        [Create(put.key, put.value) if stored is None else Set(put.key, put.value, stored.version)]
                    )
                except Conflict:
                    await self._catch_up()
                except (SessionExpired, StoreUnavailable) as error:
                    raise _cannot_commit(error) from error
                else:
                    self._producer_ids = decision.reply
                    return
            raise _not_now(f"other brokers changed the metadata concurrently, {MAX_ATTEMPTS} attempts failed")


def new_topic_id() -> bytes:
    """A random UUID (version 4) whose text form does not start with a dash: tools would parse it as an option."""
    while True:
        topic_id = uuid4_from(os.urandom(16))
        if topic_id != ZERO_UUID and not uuid_to_text(topic_id).startswith("-"):
            return topic_id


def _log_failure(creation: "asyncio.Task[list[TopicResult]]") -> None:
    """Nobody waits for a topic that is created in the background."""
    if not creation.cancelled() and (error := creation.exception()) is not None:
        log.warning("topics that clients asked for cannot be created: %s", error)


def _is_readable(change: Change) -> bool:
    try:
        NO_IMAGE.apply([change], 0)
    except records.RecordError as error:
        log.error("ignoring an invalid metadata entry: %s", error)
        return False
    return True


def _cannot_commit(error: Exception) -> KafkaError:
    if isinstance(error, SessionExpired):
        return _not_now("this broker's metadata session has expired and is being renewed")
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def _not_now(detail: str) -> KafkaError:
    # Clients ask for the controller again and retry.
    return KafkaError(ErrorCode.NOT_CONTROLLER, detail)
