"""A pure group coordinator: members join, sync, heartbeat, leave and go silent; time passes; it fails over.

Runs the pure shard alone, without a broker: every record it appends is kept, and a failover replays them. Requests and
responses are encoded and decoded in the version of the request.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.coordinator.effects import Effects, RequestInfo
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.records import CommittedOffset
from ottla.coordinator.group.shard import GroupShard
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.protocol.schema import Message
from tests.support import fresh_load
from tests.support.wire.group_requests import (
    assignment,
    commit_request,
    delete_offsets_request,
    heartbeat_request,
    join_request,
    leave_request,
    subscription,
    sync_request,
    transactional_commit_request,
)

if TYPE_CHECKING:
    from ottla.coordinator.group.history import Rebalanced

__all__ = ["GroupWorld", "Logged", "assignment", "image_of", "subscription", "topic_id"]

PARTITIONS = 3
"""Of each topic of a world."""


def topic_id(name: str, incarnation: int = 0) -> bytes:
    """A predictable id; a recreated topic gets another."""
    return name.encode()[:15].ljust(15, b".") + bytes((incarnation,))


def image_of(*topics: str, version: int = 1, partitions: int = PARTITIONS, incarnation: int = 0) -> ClusterImage:
    """A cluster of one broker with these topics."""
    made = {
        name: TopicImage(
            name,
            topic_id(name, incarnation),
            tuple(PartitionImage(index, 0, 0, 0, (0,), (0,)) for index in range(partitions)),
            {},
        )
        for name in topics
    }
    return ClusterImage(
        cluster_id="test",
        controller_id=0,
        brokers={},
        topics=made,
        topic_names={topic.topic_id: name for name, topic in made.items()},
        broker_configs={},
        version=version,
    )


class Logged(NamedTuple):
    """One entry of the shard's log: a record, or the marker that ends a transaction."""

    key: bytes
    value: bytes | None
    timestamp: int
    producer_id: int = -1
    producer_epoch: int = -1
    commit: bool | None = None


def _replay(shard: GroupShard, offset: int, logged: Logged) -> None:
    key, value, timestamp, producer_id, producer_epoch, commit = logged
    if commit is not None:
        shard.replay_marker(producer_id, producer_epoch, commit)
    else:
        shard.replay(offset, key, value, timestamp, producer_id, producer_epoch)


class GroupWorld:
    """One shard, its log, its clock, and the answers it gave."""

    def __init__(self, *, topics: tuple[str, ...] = ("orders",), now: int = 1_000_000, **settings: Any) -> None:
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        self.config = GroupConfig(**settings)
        self.now = now
        self.log: list[Logged] = []
        self.image = image_of(*topics)
        self.answers: dict[int, Any] = {}
        self.events: list[Rebalanced] = []
        self._versions: dict[int, int] = {}
        self._request_id = 0
        self._uuids = 0
        self.load()

        fresh_load.watch(self)

    def load(self) -> None:
        """Another coordinator loads the log."""
        self.shard = self.fresh_load()
        self.run(self.shard.on_loaded(self.now))
        self.run(self.shard.on_image(self.image, self.now))

    def fresh_load(self) -> GroupShard:
        """Another shard that has replayed the log."""
        shard = GroupShard(self.config, self._make_uuid)
        for offset, logged in enumerate(self.log):
            _replay(shard, offset, logged)
        return shard

    def _append(self, logged: Logged) -> None:
        _replay(self.shard, len(self.log), logged)
        self.log.append(logged)

    def _make_uuid(self) -> str:
        self._uuids += 1
        return f"uuid{self._uuids}"

    # --- events -------------------------------------------------------------------------------------

    def run(self, effects: Effects[Any]) -> Effects[Any]:
        producer_id, producer_epoch = effects.producer or (-1, -1)
        for key, value in effects.records:
            self._append(Logged(key, value, self.now, producer_id, producer_epoch))
        for request_id, response in effects.replies:
            assert request_id not in self.answers, "a request was answered twice"
            if isinstance(response, Message):
                version = self._versions[request_id]
                response = type(response).decode(response.encode(version), version)
            self.answers[request_id] = response
        self.events += effects.events
        return effects

    def ask(self, method: str, request: Message, *, version: int | None = None, client: str = "client") -> int:
        """Sends a request and returns its id; the response, once there is one, is in `answers`."""
        version = request.versions[-1] if version is None else version
        self._request_id += 1
        self._versions[self._request_id] = version
        received = type(request).decode(request.encode(version), version)
        info = RequestInfo(version, client, "/127.0.0.1")
        self.run(getattr(self.shard, method)(received, info, self._request_id, self.now))
        return self._request_id

    def wait(self, milliseconds: int) -> None:
        """Advances the clock and fires each timer at its time."""
        end = self.now + milliseconds
        for _ in range(100_000):
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.run(self.shard.tick(self.now))
        self.now = end

    def fail_over(self) -> None:
        """Another broker takes the partition: parked requests are answered, and the log is replayed."""
        self.run(self.shard.on_unloaded())
        self.load()

    def publish(self, image: ClusterImage) -> None:
        self.image = image
        self.run(self.shard.on_image(image, self.now))

    def delete_topic(self, name: str) -> None:
        topics = tuple(topic for topic in self.image.topics if topic != name)
        self.publish(image_of(*topics, version=self.image.version + 1))

    def end_transaction(self, producer_id: int, *, commit: bool, producer_epoch: int = 0) -> None:
        """The marker of a transaction reaches the partition."""
        self._append(Logged(b"", None, self.now, producer_id, producer_epoch, commit))

    # --- members ------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", *, version: int = 9, client: str = "client", **options: Any) -> int:
        """See `join_request` for the options."""
        return self.ask("join", join_request(member_id, **options), version=version, client=client)

    def enter(self, client: str = "client", **options: Any) -> tuple[str, int]:
        """Both rounds of a first join (KIP-394): the member id, and the parked request."""
        first = self.join(client=client, **options)
        answer = self.answers[first]
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, answer
        return answer.member_id, self.join(answer.member_id, client=client, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assigned: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        version: int = 5,
        **options: Any,
    ) -> int:
        """`assigned` maps member ids to assignments; only the leader's count. The protocol is the group's
        by default."""
        known = self.shard.groups.get(group)
        if known is not None and known.protocol is not None:
            options.setdefault("protocol", known.protocol)
        request = sync_request(member_id, generation, assigned, group=group, **options)
        return self.ask("sync", request, version=version)

    def heartbeat(self, member_id: str, generation: int, *, version: int = 4, **options: Any) -> ErrorCode | None:
        return self.code(self.ask("heartbeat", heartbeat_request(member_id, generation, **options), version=version))

    def leave(self, *members: str, **options: Any) -> Any:
        return self.leaves(*((member, None) for member in members), **options)

    def leaves(self, *members: tuple[str, str | None], version: int = 5, **options: Any) -> Any:
        """Members leave, each as (member id, instance id)."""
        request = leave_request(*members, version=version, **options)
        return self.answers[self.ask("leave", request, version=version)]

    # --- offsets ------------------------------------------------------------------------------------------

    def commit(
        self, offset: int = 1, *, partition: int = 0, version: int = 9, by_id: bytes = bytes(16), **options: Any
    ) -> ErrorCode:
        request = commit_request({partition: offset}, topic_id=by_id, **options)
        answer = self.answers[self.ask("commit_offsets", request, version=version)]
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def commit_in_transaction(
        self, offset: int, *, partition: int = 0, topic: str = "orders", version: int = 5, **options: Any
    ) -> ErrorCode:
        named = {"topic_id": topic_id(topic)} if version >= 6 else {"topic": topic}
        request = transactional_commit_request({partition: offset}, **named, **options)
        answer = self.answers[self.ask("commit_in_transaction", request, version=version)]
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, *, group: str = "g", topic: str = "orders", partition: int = 0) -> int | None:
        found = self.stored(group=group, topic=topic, partition=partition)
        return None if found is None else found.offset

    def stored(self, *, group: str = "g", topic: str = "orders", partition: int = 0) -> CommittedOffset | None:
        return self.shard.offsets.find(group, topic, partition)

    def fetch(
        self, *, group: str = "g", topic: str = "orders", partition: int = 0, stable: bool = False
    ) -> tuple[int, ErrorCode]:
        """(offset, error) as OffsetFetch answers for one partition."""
        wanted = [(topic, bytes(16), [partition])]
        ((_, _, ((_, committed, code),)),) = self.shard.fetch_offsets(group, wanted, stable, False)
        return (-1 if committed is None else committed.offset), code

    def delete_offset(self, *, partition: int = 0, **options: Any) -> ErrorCode:
        """The error of the whole request, or of the partition."""
        request = delete_offsets_request([partition], **options)
        answer = self.answers[self.ask("delete_offsets", request)]
        return ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)

    def delete_group(self, group: str = "g") -> ErrorCode:
        self._request_id += 1
        self.run(self.shard.delete_group(group, self._request_id))
        return ErrorCode(self.answers[self._request_id])

    # --- observations -------------------------------------------------------------------------------------

    def code(self, request_id: int) -> ErrorCode | None:
        """The error code a request was answered with; None while it waits."""
        answer = self.answers.get(request_id)
        if answer is None:
            return None
        return answer.code if isinstance(answer, KafkaError) else ErrorCode(answer.error_code)

    def state(self, group: str = "g") -> str:
        found = self.shard.groups.get(group)
        return "Dead" if found is None else str(found.state)

    def members(self, group: str = "g") -> set[str]:
        return set(self.shard.groups[group].members)

    def generation(self, group: str = "g") -> int:
        return self.shard.groups[group].generation

    def leader(self, group: str = "g") -> str:
        leader = self.shard.groups[group].leader_id
        assert leader is not None
        return leader

    def settle(self, *clients: str, group: str = "g", **options: Any) -> dict[str, str]:
        """Brings clients into one stable group (each with one partition of `orders`) and returns their member ids.
        With `static=True` each client is a static member whose instance id is its name."""
        static = options.pop("static", False)
        entered: dict[str, tuple[str, int]] = {}
        for client in clients:
            if static:
                request = self.join(client=client, group=group, instance=client, **options)
                entered[client] = (next(m for m in self.members(group) if m.startswith(f"{client}-")), request)
            else:
                entered[client] = self.enter(client, group=group, **options)
        self.wait(0)
        for _ in range(len(clients) + 1):
            # A member that joined after the first generation started makes everyone rejoin.
            if all(self.code(request) is not None for _, request in entered.values()):
                break
            for client, (member_id, request) in list(entered.items()):
                if self.code(request) is not None:
                    instance = client if static else None
                    again = self.join(member_id, client=client, group=group, instance=instance, **options)
                    entered[client] = (member_id, again)
        ids = {client: member_id for client, (member_id, _) in entered.items()}
        self.synchronize(ids, group=group)
        return ids

    def synchronize(self, ids: dict[str, str], *, group: str = "g") -> None:
        """Every member syncs, the leader last, with one partition of `orders` for each."""
        generation, leader = self.generation(group), self.leader(group)
        protocol_type = self.shard.groups[group].protocol_type
        shares = {member_id: assignment(orders=[index]) for index, member_id in enumerate(ids.values())}
        for member_id in [m for m in ids.values() if m != leader] + [leader]:
            assigned = shares if member_id == leader else {}
            self.sync(member_id, generation, assigned, group=group, protocol_type=protocol_type)
        assert self.state(group) == "Stable", self.state(group)
