"""OWNER of this broker's membership in the cluster: registers it, follows the store, publishes each new image.

Any broker can change topics and settings: it decides from its current image, and the commit succeeds only if the
keys involved are unchanged. If another broker commits first, it decides again. Only the controller, elected with an
ephemeral key, elects new partition leaders when brokers join or leave.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError, error_text
from ottla.metadata import records
from ottla.metadata.changes.cluster_changes import (
    MAX_ATTEMPTS,
    ClusterChanges,
    Decide,
    R,
    cannot_commit,
    new_topic_id,
    retry_later,
)
from ottla.metadata.changes.registration import Joining, is_report_due, mark_leaving, register, report_logs
from ottla.metadata.config import ControllerConfig
from ottla.metadata.controller import elections
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.controller.duties import ControllerDuties
from ottla.metadata.controller.lost_brokers import LostBrokers
from ottla.metadata.follower_state import FollowerState, move
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage
from ottla.metadata.store import (
    Change,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    SessionExpired,
    Set,
    StoreUnavailable,
)
from ottla.types import TopicPartition, uuid_to_text

if TYPE_CHECKING:
    from ottla.metadata.changes.topic_changes import Rules
    from ottla.metadata.controller.isr_changes import IsrChange
    from ottla.metadata.controller.isr_proposals import IsrProposals

log = logging.getLogger("ottla.metadata")

LogEnds = Callable[[], Mapping[TopicPartition, tuple[int, int]]]
"""The last leader epoch and the end offset of each log of this broker."""
Subscriber = Callable[[ClusterImage], "Awaitable[None] | None"]

ATTEMPTS_AT_ONCE = 3
"""How often a change is retried without a pause in between."""
RECONNECT_SECONDS = 1.0
DUPLICATE_POLL_SECONDS = 0.1
EXPIRY_SLACK_MS = 5_000
"""How much later than its timeout a store may end a session. etcd extends all leases when it restarts."""


class MetadataFollower:
    """One broker's view of the cluster. The calls of clients to change it are in `changes`."""

    def __init__(
        self,
        store: MetadataStore,
        rules: "Rules",
        *,
        config: ControllerConfig | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._store = store
        self._rules = rules
        self._config = config or ControllerConfig()
        self._clock = clock
        self._state = FollowerState.NEW
        self._joining: Joining | None = None
        """How this broker registers, now or in its next session; None before `start`."""
        self._image = NO_IMAGE
        """The basis of decisions; newer than the published image while joining. Never empty after the first read: a
        decision from an empty image would delete or replace what is stored."""
        self._published = NO_IMAGE
        self._versions: dict[str, int] = {}
        self._subscribers: list[Subscriber] = []
        self._unfinished: dict[Subscriber, asyncio.Future[None]] = {}
        self._duties_due = asyncio.Event()
        self._duties: asyncio.Task[None] | None = None
        self._controller: ControllerDuties | None = None
        self._proposals: IsrProposals | None = None
        self._log_ends: LogEnds | None = None
        self._lost = LostBrokers()
        self._stop_watching: Callable[[], None] = lambda: None
        self._is_publishing = False
        """Whether each new image is published; False while joining."""
        self._read_session = 0
        """The session in which everything that is stored was read; 0 before the first. In a later one, the image may be
        outdated although the versions of keys match: those of a key that was deleted and created again start over."""
        self._joined_session = 0
        """The session in which this broker is registered and has applied an image; 0 before the first."""
        self._is_report_due = False
        """Whether the ends of the logs have not been reported since this broker joined."""
        self._lock = asyncio.Lock()
        """Held while a decision is made and committed: a broker does not compete with itself."""
        self.changes = ClusterChanges(
            store,
            rules,
            submit=self._submit,
            catch_up=self._catch_up,
            image=lambda: self._image,
            broker_id=lambda: self.broker_id,
        )

    @property
    def image(self) -> ClusterImage:
        """The last published image."""
        return self._published

    @property
    def broker_id(self) -> int:
        return -1 if self._joining is None else self._joining.broker.broker_id

    @property
    def broker_epoch(self) -> int:
        """Of this broker's last registration; -1 before the first."""
        return -1 if self._joining is None else self._joining.broker.epoch

    @property
    def is_session_confirmed(self) -> bool:
        """Whether nobody can have declared this broker dead yet, by this broker's own clock.

        While it is False, others may lead its partitions: it must not acknowledge what needs the in-sync set. A new
        session is not enough. The leaders that others elected before are known once this broker has joined in it.
        """
        return self._is_joined and self._store.is_confirmed

    @property
    def _is_joined(self) -> bool:
        session_id = self._store.session_id
        return session_id != 0 and session_id == self._joined_session

    def awaits_elections(self, topics: Iterable[str]) -> bool:
        """Whether one of these topics is about to get new leaders, because a broker has just been lost."""
        if self._store.is_losing_sessions():
            return True
        if not self._lost.has_any:
            return False
        image, now = self._published, asyncio.get_running_loop().time()
        found = (image.topics[name] for name in topics if name in image.topics)
        return any(self._lost.awaits_election(image, each, now) for topic in found for each in topic.partitions)

    def lost_brokers(self) -> list[BrokerRegistration]:
        """Brokers that are gone, but stay in the list of brokers for a moment."""
        return self._lost.listed(asyncio.get_running_loop().time()) if self._lost.has_any else []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every new image, in order, starting with the current one.

        It may return an awaitable: changes that this broker makes wait for it.
        """
        self._subscribers.append(subscriber)
        if self._published is not NO_IMAGE:
            self._pass_to(subscriber)
        return lambda: self._subscribers.remove(subscriber) if subscriber in self._subscribers else None

    # Joining and leaving the cluster

    async def start(
        self,
        registration: BrokerRegistration,
        *,
        previous_epoch: int | None = None,
        cluster_id: str | None = None,
        has_new_directory: bool = False,
    ) -> None:
        """Registers this broker. The first image is published before this returns.

        `previous_epoch` proves that the logs have everything: it is the broker epoch of a clean shutdown. `cluster_id`
        is the cluster that the data directory belongs to, if it is not new.
        """
        self._joining = Joining(registration, previous_epoch, cluster_id, has_new_directory)
        loop = asyncio.get_running_loop()
        self._controller = ControllerDuties(
            registration.broker_id,
            self._rules,
            self._config,
            submit=lambda decide: self._decide_and_commit(decide, self._store.commit_repeatable),
            clock=self._clock,
            now=loop.time,
        )
        self._store.on_expired = self._duties_due.set
        self._stop_watching = self._store.watch("/", self._on_changes)
        try:
            await self._join()
        except BaseException:
            self._stop_watching()
            await self._store.close()
            raise
        self._state = move(self._state, FollowerState.MEMBER)
        self._duties = loop.create_task(self._do_duties())

    async def leave(self, timeout_ms: int) -> int:
        """Gives leadership to other in-sync replicas and leaves the in-sync sets; this broker keeps serving.

        Returns how many partitions were handed over.

        Where no other replica is in sync, it stays leader until it stops. If the store times out, the others take
        over when this broker stops.
        """
        if self._state is not FollowerState.MEMBER:
            return 0
        self._state = move(self._state, FollowerState.LEAVING)
        broker_id = self.broker_id
        if not self._is_joined or self._image.brokers.keys() <= {broker_id}:
            return 0
        moved = 0
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._submit(lambda image: mark_leaving(image, broker_id, self._clock()), repeatable=True)
                while changed := await self._submit(
                    lambda image: elections.hand_over(image, self._rules, broker_id), repeatable=True
                ):
                    moved += changed
        except (KafkaError, TimeoutError) as error:
            log.warning("broker %d: cannot transfer leadership: %s", broker_id, error or "the store does not answer")
        log.info("broker %d is leaving: %d partitions handed over", broker_id, moved)
        return moved

    def freeze(self) -> None:
        """Changes no leader or in-sync set from now on: brokers that are stopped together must not replace each
        other as leaders."""
        if self._state is not FollowerState.FROZEN:
            self._state = move(self._state, FollowerState.FROZEN)
        if self._duties is not None:
            self._duties.cancel()

    async def stop(self) -> None:
        """Leaves the cluster. Call `leave` before, to hand over leadership."""
        self.freeze()
        if self._duties is not None:
            await asyncio.gather(self._duties, return_exceptions=True)
            self._duties = None
        await self.changes.finish()
        if self._proposals is not None:
            await self._proposals.stop()
        self._stop_watching()
        await self._store.close()

    async def _join(self) -> None:
        """Reads the metadata and registers, in a new session or in the one of an attempt that got no answer."""
        self._is_publishing = False
        if not self._store.session_id:
            await self._store.start()
        session_id = self._store.session_id
        try:
            await self._read_all()
            await self._register()
        except (SessionExpired, StoreUnavailable) as error:
            raise OttlaError(cannot_commit(error).detail, "Check the metadata store.") from error
        self._is_publishing = True
        self._publish(self._published)
        await self.applied()
        self._joined_session = session_id
        image = self._image
        log.info(
            "broker %d registered (cluster %s, controller %d, %d topics)",
            self.broker_id,
            image.cluster_id,
            image.controller_id,
            len(image.topics),
        )
        # If the session expires, this process still has everything: that is as good as a clean shutdown.
        own = image.brokers.get(self.broker_id)
        if own is not None:
            self._joining = Joining(own, own.epoch, image.cluster_id)
        self._is_report_due = self._log_ends is not None
        self._duties_due.set()

    async def _read_all(self) -> None:
        # Requests wait, and are decided from what is read here.
        async with self._lock:
            session_id = self._store.session_id
            entries = await self._store.scan("/")
            try:
                _check_not_migrated(entries)
                stored = {entry.key for entry in entries}
                gone = [Change(key, None, 0) for key in self._versions if key not in stored]
                found = [Change(entry.key, entry, entry.modified) for entry in entries]
                # A broker that cannot read an entry does not start. One that runs keeps the value it has, also when it
                # joins again: otherwise one bad entry would stop all brokers when their sessions expire.
                self._apply([*gone, *found], is_strict=self._state is FollowerState.NEW)
            except records.RecordError as error:
                raise OttlaError(
                    f"cannot read the stored metadata: {error}",
                    "Use the Ottla version that wrote it, or restore the metadata from a backup.",
                ) from error
            self._read_session = session_id

    async def _register(self) -> None:
        joining = self._joining
        assert joining is not None
        new_cluster_id = uuid_to_text(new_topic_id())
        loop_time = asyncio.get_running_loop().time
        # After a crash, this broker's own earlier registration may still exist.
        wait_ms = self._store.session_timeout_ms + EXPIRY_SLACK_MS if self._store.dead_sessions_linger else 0
        wait_until = loop_time() + wait_ms / 1000
        is_waiting = False
        while True:
            try:
                await self._decide_and_commit(
                    lambda image: register(
                        image, joining, self._rules, new_cluster_id, self._clock(), awaited=self._awaited(image)
                    ),
                    self._store.commit_repeatable,
                )
                return
            except KafkaError as error:
                if error.code not in _JOIN_HINTS:
                    raise
                is_duplicate = error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
                if is_duplicate and await self._is_registered():
                    return
                if not is_duplicate or loop_time() >= wait_until:
                    raise OttlaError(error.detail, _JOIN_HINTS[error.code]) from None
            if not is_waiting:
                is_waiting = True
                log.info(
                    "broker %d: node.id is already registered; waiting up to %d s for the registration to expire, in "
                    "case it is that of a crashed process",
                    self.broker_id,
                    wait_ms // 1000,
                )
            await asyncio.sleep(DUPLICATE_POLL_SECONDS)
            await self._store.sync()

    async def _is_registered(self) -> bool:
        """Whether an earlier attempt in this session, which got no answer, has registered this broker."""
        entry = await self._store.get(records.broker_key(self.broker_id))
        return entry is not None and entry.session_id == self._store.session_id

    def _awaited(self, image: ClusterImage) -> Collection[int]:
        return () if self._controller is None else self._controller.awaited(image)

    # Following

    def _on_changes(self, changes: Sequence[Change]) -> None:
        before = self._image
        self._apply(changes)
        if self._is_publishing and self._image is not before:
            self._publish(before)

    def _apply(self, changes: Sequence[Change], *, is_strict: bool = False) -> None:
        """Updates the basis of decisions. Entries that cannot be read are ignored, unless `is_strict`."""
        before = self._image
        revision = max((change.revision for change in changes), default=before.version)
        version = max(revision, before.version + 1)
        try:
            self._image = before.apply(changes, version)
        except records.RecordError:
            if is_strict:
                raise
            self._image = before.apply([change for change in changes if _is_readable(change)], version)
        versions = self._versions
        for key, entry, _ in changes:
            if entry is None:
                versions.pop(key, None)
            else:
                versions[key] = entry.version

    def _publish(self, before: ClusterImage) -> None:
        image = self._published = self._image
        self._lost.note(before, image, asyncio.get_running_loop().time())
        if self._controller is not None and self._controller.note(before, image):
            self._duties_due.set()
        if image.controller_id not in (before.controller_id, records.NO_CONTROLLER):
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
        """Runs when a broker joins or leaves, the session expires or a duty is due; sleeps otherwise."""
        assert self._controller is not None
        wait_seconds: float | None = None
        problem = None
        while True:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._duties_due.wait()
            except TimeoutError:
                pass
            self._duties_due.clear()
            try:
                if self._state is FollowerState.MEMBER:
                    if not self._is_joined:
                        await self._join()
                    if self._is_report_due and self._log_ends is not None:
                        await self.report_logs(self._log_ends)
                    await self._controller.perform(self._image)
                    wait_seconds = await self._controller.next_duty(self._image)
                problem = None
            except Exception as error:
                if error_text(error) != problem:
                    # The same problem is logged once, however long it lasts.
                    problem = error_text(error)
                    is_expected = isinstance(error, KafkaError | OttlaError | SessionExpired | StoreUnavailable)
                    log.warning(
                        "broker %d: cannot update cluster metadata, will be retried: %s",
                        self.broker_id,
                        problem,
                        exc_info=not is_expected,
                    )
                await asyncio.sleep(RECONNECT_SECONDS)
                self._duties_due.set()

    # Deciding

    async def _submit(self, decide: Decide[R], *, repeatable: bool = False) -> R:
        """Decides from the current image and commits. Subscribers have applied the changes when this returns.
        `repeatable` decisions are repeated in every session."""
        reply = await self._decide_and_commit(
            decide, self._store.commit_repeatable if repeatable else self._store.commit
        )
        await self.applied()
        return reply

    async def _decide_and_commit(self, decide: Decide[R], commit: Callable[[list[Operation]], Awaitable[None]]) -> R:
        async with self._lock:
            for attempt in range(MAX_ATTEMPTS):
                if self._store.session_id not in (0, self._read_session):
                    raise cannot_commit(SessionExpired())
                decision = decide(self._image)
                if not decision.changes:
                    return decision.reply
                try:
                    await commit(self._operations(decision))
                    return decision.reply
                except Conflict:
                    await self._catch_up()
                    if attempt >= ATTEMPTS_AT_ONCE:
                        # Different for each broker, so that they do not collide again.
                        await asyncio.sleep(min(attempt, 10) * (1 + self.broker_id % 7) / 1000)
                except (SessionExpired, StoreUnavailable) as error:
                    raise cannot_commit(error) from error
            raise retry_later(f"other brokers changed the metadata concurrently, {MAX_ATTEMPTS} attempts failed")

    async def _catch_up(self) -> None:
        """Returns when the image has every change that was committed before this call."""
        try:
            await self._store.sync()
        except (SessionExpired, StoreUnavailable) as error:
            raise cannot_commit(error) from error

    def _operations(self, decision: Decision[Any]) -> list[Operation]:
        versions = self._versions
        operations: list[Operation] = [Check(key, versions.get(key, 0), created) for key, created in decision.requires]
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

    # In-sync sets and recovery

    async def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Hands over partitions whose storage failed, where another in-sync replica is alive, and leaves the sets."""
        while await self._submit(
            lambda image: elections.give_up(image, self._rules, self.broker_id, partitions), repeatable=True
        ):
            log.warning("broker %d: gave up partitions whose storage failed", self.broker_id)

    async def report_logs(self, log_ends: "LogEnds") -> None:
        """Reports how long this broker's logs are, where that decides who becomes leader after a power failure."""
        self._log_ends, self._is_report_due = log_ends, True
        if is_report_due(self._image, self.broker_id):
            ends = log_ends()
            while await self._submit(
                lambda image: report_logs(image, self.broker_id, ends, limit=elections.MAX_CHANGES), repeatable=True
            ):
                log.info("broker %d: reported the ends of its logs after an unclean restart", self.broker_id)
        self._is_report_due = False

    async def alter_partition(self, change: "IsrChange") -> ErrorCode:
        """Changes the in-sync set of a partition that this broker leads.

        NONE: it is committed, and the new image has been published. NOT_CONTROLLER and KAFKA_STORAGE_ERROR: unknown,
        the store is unavailable or the session has expired. Any other error: nothing has changed.
        """
        if self._state is FollowerState.FROZEN:
            return ErrorCode.NOT_CONTROLLER
        if self._proposals is None:
            from ottla.metadata.controller.isr_proposals import IsrProposals

            self._proposals = IsrProposals(self._alter_partitions)
        return await self._proposals.propose(change)

    async def _alter_partitions(self, changes: "Sequence[IsrChange]") -> list[ErrorCode]:
        from ottla.metadata.controller.isr_changes import alter_partitions

        return await self._decide_and_commit(
            lambda image: alter_partitions(image, self._rules, self.broker_id, changes), self._store.commit
        )


_JOIN_HINTS = {
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "Give each broker its own node.id.",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "Use the metadata of that cluster, or another data directory.",
    ErrorCode.UNSUPPORTED_VERSION: "Use a version of Ottla that supports it, or downgrade the feature first.",
    ErrorCode.LOG_DIR_NOT_FOUND: (
        "Start it with the directory that has the records. If they are lost, delete these topics on another broker, or "
        "choose other replicas as leaders with an unclean election."
    ),
}


def _check_not_migrated(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.key == records.MIGRATED_TO:
            location = records.read_migrated_to(entry.key, entry.value)
            raise OttlaError(
                f"this metadata was moved to {location}",
                f"Start the broker with --metadata {location}. To move it back: ottla cluster migrate-metadata --help",
            )


def _is_readable(change: Change) -> bool:
    try:
        NO_IMAGE.apply([change], 0)
    except records.RecordError as error:
        log.error("metadata entry ignored, because it is invalid: %s", error)
        return False
    return True
