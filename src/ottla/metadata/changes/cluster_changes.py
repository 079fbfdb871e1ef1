"""Changes to the cluster on request: topics, settings, features, producer ids. Any broker can make them.

`MetadataFollower.changes` has these calls. Each applies a rule of another module to the current image, and retries if
another broker commits first.

Rules that a broker does not need to start are imported on first use, in the functions below: this keeps its start fast.
"""

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes import features, reassignments
from ottla.metadata.changes.registration import unregister
from ottla.metadata.controller import elections
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.image import ClusterImage
from ottla.metadata.store import Conflict, Create, MetadataStore, SessionExpired, Set, StoreUnavailable
from ottla.security.acls import check_binding
from ottla.types import ZERO_UUID, uuid4_from, uuid_to_text

if TYPE_CHECKING:
    from ottla.metadata.changes.config_changes import ResourceChange, ResourceResult
    from ottla.metadata.changes.features import FeatureUpdate
    from ottla.metadata.changes.quota_changes import QuotaChange, QuotaResult
    from ottla.metadata.changes.reassignments import Reassignment, ReassignmentResult
    from ottla.metadata.changes.scram_changes import Deletion, Upsertion, UserResult
    from ottla.metadata.changes.topic_changes import MorePartitions, NewTopic, Rules, TopicReference, TopicResult
    from ottla.metadata.controller.elections import ElectionResult, ElectionType
    from ottla.security.acls import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern
    from ottla.types import TopicPartition

log = logging.getLogger("ottla.metadata")

R = TypeVar("R")
T = TypeVar("T")
Decide = Callable[[ClusterImage], Decision[R]]

MAX_ATTEMPTS = 50
"""How often a change is retried because other brokers changed the same keys."""
CREATING_MAX = 1000
"""The most topics created in the background at the same time: a metadata request can name any number."""
CREATED_AT_ONCE = 10
"""Topics per commit of these, so that other requests are served in between."""


class Submit(Protocol):
    """Decides from the current image and commits. Subscribers have applied the changes when it returns."""

    async def __call__(self, decide: Decide[R]) -> R: ...


class ClusterChanges:
    """The calls of handlers that change the cluster."""

    def __init__(
        self,
        store: MetadataStore,
        rules: "Rules",
        *,
        submit: Submit,
        catch_up: Callable[[], Awaitable[None]],
        image: Callable[[], ClusterImage],
        broker_id: Callable[[], int],
    ) -> None:
        """`image` is the basis of decisions. `catch_up` returns when it has all changes committed before the call."""
        self._store = store
        self._rules = rules
        self._submit = submit
        self._catch_up = catch_up
        self._image = image
        self._broker_id = broker_id
        self._creating: dict[str, asyncio.Task[list[TopicResult]]] = {}
        self._producer_ids = range(0)
        self._taking_producer_ids = asyncio.Lock()

    # Administrative changes are logged with the client that requested them (`by`).

    async def create_topics(
        self, topics: "Sequence[NewTopic]", *, validate_only: bool = False, by: str = ""
    ) -> "list[TopicResult]":
        from ottla.metadata.changes import change_log
        from ottla.metadata.changes import topic_changes as controller

        results = await self._submit(
            lambda image: controller.create_topics(
                image, topics, self._rules, new_topic_id, validate_only=validate_only
            )
        )
        for result in results:
            if result.error == ErrorCode.NONE and not validate_only:
                change_log.log_change(f"topic {result.name} created: {result.partitions} partitions", by)
        return results

    def start_creating(
        self,
        topics: "Iterable[NewTopic]",
        refuses: "Callable[[TopicResult], bool]" = lambda result: False,
        *,
        by: str = "",
    ) -> "list[TopicResult]":
        """Creates topics in the background. Returns at once, with a result for each topic; NONE if it will be created.

        `refuses` is called for each topic that could be created now, and can still reject it.
        """
        from ottla.metadata.changes import topic_changes as controller

        missing = [topic for topic in topics if topic.name not in self._creating]
        # Clients retry topics that are still unknown.
        missing = missing[: max(0, CREATING_MAX - len(self._creating))]
        results = controller.create_topics(self._image(), missing, self._rules, new_topic_id).reply
        possible = {result.name for result in results if result.error == ErrorCode.NONE and not refuses(result)}
        wanted = [topic for topic in missing if topic.name in possible]
        for start in range(0, len(wanted), CREATED_AT_ONCE):
            self._create_once(wanted[start : start + CREATED_AT_ONCE], by).add_done_callback(_log_failure)
        return results

    def _create_once(self, topics: "Sequence[NewTopic]", by: str = "") -> "asyncio.Task[list[TopicResult]]":
        """Starts a creation that other callers can await."""
        task = asyncio.get_running_loop().create_task(self.create_topics(topics, by=by))
        for topic in topics:
            self._creating[topic.name] = task
        task.add_done_callback(lambda _: [self._creating.pop(topic.name, None) for topic in topics])
        return task

    async def finish(self) -> None:
        """Returns when the topics that are being created in the background have been created, or have failed."""
        await asyncio.gather(*set(self._creating.values()), return_exceptions=True)

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
        self, requests: "Sequence[MorePartitions]", *, validate_only: bool = False, by: str = ""
    ) -> "list[TopicResult]":
        from ottla.metadata.changes import change_log
        from ottla.metadata.changes import topic_changes as controller

        results = await self._submit(
            lambda image: controller.create_partitions(image, requests, validate_only=validate_only)
        )
        totals = {request.name: request.total for request in requests}
        for result in results:
            if result.error == ErrorCode.NONE and not validate_only:
                change_log.log_change(f"topic {result.name} has {totals[result.name or '']} partitions now", by)
        return results

    async def delete_topics(self, references: "Sequence[TopicReference]", *, by: str = "") -> "list[TopicResult]":
        from ottla.metadata.changes import change_log
        from ottla.metadata.changes import topic_changes as controller

        results = await self._submit(lambda image: controller.delete_topics(image, references, self._rules))
        for result in results:
            if result.error == ErrorCode.NONE:
                change_log.log_change(f"topic {result.name} deleted", by)
        return results

    async def alter_configs(
        self, requests: "Sequence[ResourceChange]", *, validate_only: bool = False, by: str = ""
    ) -> "list[ResourceResult]":
        return await self._alter_configs(requests, incremental=False, validate_only=validate_only, by=by)

    async def incremental_alter_configs(
        self, requests: "Sequence[ResourceChange]", *, validate_only: bool = False, by: str = ""
    ) -> "list[ResourceResult]":
        return await self._alter_configs(requests, incremental=True, validate_only=validate_only, by=by)

    async def _alter_configs(
        self, requests: "Sequence[ResourceChange]", *, incremental: bool, validate_only: bool, by: str
    ) -> "list[ResourceResult]":
        from ottla.metadata.changes import change_log, config_changes

        results = await self._submit(
            lambda image: config_changes.alter_configs(
                image, requests, self._rules, self._broker_id(), incremental=incremental, validate_only=validate_only
            )
        )
        if not validate_only:
            change_log.log_configs(requests, results, by, incremental=incremental)
        return results

    async def alter_client_quotas(
        self, requests: "Sequence[QuotaChange]", *, validate_only: bool = False, by: str = ""
    ) -> "list[QuotaResult]":
        from ottla.metadata.changes import change_log, quota_changes

        results = await self._submit(
            lambda image: quota_changes.alter_client_quotas(image, requests, validate_only=validate_only)
        )
        if not validate_only:
            change_log.log_quotas(requests, results, by)
        return results

    async def alter_user_scram_credentials(
        self, deletions: "Sequence[Deletion]", upsertions: "Sequence[Upsertion]", *, by: str = ""
    ) -> "list[UserResult]":
        from ottla.metadata.changes import change_log, scram_changes

        results = await self._submit(
            lambda image: scram_changes.alter_user_scram_credentials(image, deletions, upsertions)
        )
        change_log.log_users(deletions, upsertions, results, by)
        return results

    async def scram_secret(self) -> bytes:
        """A secret that all brokers share. The first call creates it."""
        entry = await self._store.get(records.SCRAM_SECRET)
        if entry is None:
            try:
                await self._store.commit([Create(records.SCRAM_SECRET, os.urandom(32).hex().encode())])
            except Conflict:
                pass  # another broker won the race
            entry = await self._store.get(records.SCRAM_SECRET)
            assert entry is not None
        return entry.value

    async def update_features(
        self, updates: "Sequence[FeatureUpdate]", *, validate_only: bool = False, by: str = ""
    ) -> None:
        """Raises INVALID_UPDATE_VERSION if one of the levels cannot be set; then none is."""
        from ottla.metadata.changes import change_log

        before = self._image().features
        await self._submit(lambda image: features.update_features(image, updates, validate_only=validate_only))
        for name, level in self._image().features.items():
            if before.get(name) != level:
                change_log.log_change(f"feature {name} is now at level {level}", by)

    # ACLs

    async def create_acls(self, bindings: "Sequence[AclBinding]", *, by: str = "") -> "list[KafkaError | None]":
        """Adds ACLs. Returns an error or None for each of them."""
        from ottla.metadata.changes import acl_changes, change_log

        results: dict[AclBinding, KafkaError | None] = {}
        wanted: dict[ResourcePattern, list[AccessControlEntry]] = {}
        for binding in bindings:
            try:
                check_binding(binding)
            except KafkaError as error:
                results[binding] = error
            else:
                wanted.setdefault(binding.pattern, []).append(binding.entry)
        failed: dict[ResourcePattern, KafkaError] = {}
        for chunk in _chunks(list(wanted), acl_changes.MAX_PATTERNS):
            decide: Decide[dict[ResourcePattern, KafkaError]] = functools.partial(
                acl_changes.add_acls, additions={pattern: wanted[pattern] for pattern in chunk}
            )
            refused: dict[ResourcePattern, KafkaError] = await self._submit(decide)
            failed |= refused
        for pattern, entries in wanted.items():
            if pattern not in failed:
                for entry in entries:
                    change_log.log_change(f"ACL added: {pattern} {entry}", by)
        return [results.get(binding, failed.get(binding.pattern)) for binding in bindings]

    async def delete_acls(self, filters: "Sequence[AclBindingFilter]", *, by: str = "") -> "list[list[AclBinding]]":
        """Deletes the ACLs that match. Returns the deleted ones for each of the filters."""
        from ottla.metadata.changes import acl_changes, change_log

        deleted: list[list[AclBinding]] = [[] for _ in filters]
        is_complete = False
        while not is_complete:
            some = await self._submit(lambda image: acl_changes.delete_acls(image, filters))
            is_complete = some.is_complete
            for found, more in zip(deleted, some.deleted, strict=True):
                found += more
        for pattern, entry in dict.fromkeys(binding for found in deleted for binding in found):
            change_log.log_change(f"ACL deleted: {pattern} {entry}", by)
        return deleted

    # Partitions and brokers

    async def elect_leaders(
        self, election_type: "ElectionType", partitions: "Sequence[TopicPartition]"
    ) -> "list[ElectionResult]":
        results: list[ElectionResult] = []
        for chunk in _chunks(partitions, elections.MAX_CHANGES):
            decide: Decide[list[ElectionResult]] = functools.partial(
                elections.elect_requested, rules=self._rules, election_type=election_type, partitions=chunk
            )
            chunk_results = await self._submit(decide)
            results += chunk_results
        return results

    async def alter_partition_reassignments(
        self, requests: "Sequence[Reassignment]", *, allow_replication_factor_change: bool = True, by: str = ""
    ) -> "list[ReassignmentResult]":
        from ottla.metadata.changes import change_log

        results: list[ReassignmentResult] = []
        for chunk in _chunks(requests, elections.MAX_CHANGES):
            decide: Decide[list[ReassignmentResult]] = functools.partial(
                reassignments.alter_reassignments,
                rules=self._rules,
                requests=chunk,
                allow_replication_factor_change=allow_replication_factor_change,
            )
            chunk_results = await self._submit(decide)
            results += chunk_results
        changed = sum(result.error == ErrorCode.NONE for result in results)
        if changed:
            change_log.log_change(f"reassignments of {changed} partitions were changed", by)
        return results

    async def unregister_broker(self, broker_id: int, *, by: str = "") -> None:
        """Raises BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST if the broker is running."""
        from ottla.metadata.changes import change_log

        await self._submit(lambda image: unregister(image, broker_id))
        change_log.log_change(f"broker {broker_id} unregistered", by)

    # Producer ids

    async def allocate_producer_ids(self, count: int = 1) -> int:
        """The first of `count` producer ids that are unique in the cluster."""
        while len(self._producer_ids) < count:
            await self._take_producer_id_block(count)
        first = self._producer_ids.start
        self._producer_ids = self._producer_ids[count:]
        return first

    async def _take_producer_id_block(self, count: int) -> None:
        from ottla.metadata.changes import topic_changes as controller

        async with self._taking_producer_ids:
            if len(self._producer_ids) >= count:
                return
            for _ in range(MAX_ATTEMPTS):
                try:
                    stored = await self._store.get(records.PRODUCER_ID_BLOCK)
                    decision = controller.next_producer_id_block(
                        self._broker_id(), None if stored is None else stored.value, count
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
                    raise cannot_commit(error) from error
                else:
                    self._producer_ids = decision.reply
                    return
            raise retry_later(f"other brokers changed the metadata concurrently, {MAX_ATTEMPTS} attempts failed")


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def new_topic_id() -> bytes:
    """A random UUID (version 4) whose text form does not start with a dash: tools would parse it as an option."""
    while True:
        topic_id = uuid4_from(os.urandom(16))
        if topic_id != ZERO_UUID and not uuid_to_text(topic_id).startswith("-"):
            return topic_id


def _log_failure(creation: "asyncio.Task[list[TopicResult]]") -> None:
    """Nobody awaits a topic that is created in the background, so its error is logged."""
    if not creation.cancelled() and (error := creation.exception()) is not None:
        log.warning("topics requested by clients cannot be created: %s", error)


def cannot_commit(error: Exception) -> KafkaError:
    if isinstance(error, SessionExpired):
        return retry_later("this broker's metadata session has expired and is being renewed")
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def retry_later(detail: str) -> KafkaError:
    """NOT_CONTROLLER: clients look up the controller again and retry."""
    return KafkaError(ErrorCode.NOT_CONTROLLER, detail)
