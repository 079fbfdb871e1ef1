"""A group coordinator in words: members join, sync, beat, leave and fall silent; time passes; it fails over.

Runs the pure shard alone, without a broker: every record it appends is kept, and a failover replays them.
"""

from typing import Any

from ottla.coordinator.effects import Append, Effects, RequestInfo
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.rebalance import Rebalanced
from ottla.coordinator.group.shard import GroupShard
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.protocol.framing import encode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 3)


def assignment(**partitions: list[int]) -> bytes:
    """assignment(orders=[0, 1])"""
    parts = [ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=p) for t, p in partitions.items()]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), 3)


def image_of(*topics: str, version: int = 1) -> ClusterImage:
    """A cluster of one broker with these topics, three partitions each."""
    made = {
        name: TopicImage(
            name,
            name.encode().ljust(16, b".")[:16],
            tuple(PartitionImage(index, 0, 0, 0, (0,), (0,)) for index in range(3)),
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


class GroupWorld:
    """One shard, its log, its clock, and the answers it gave."""

    def __init__(self, *, topics: tuple[str, ...] = ("orders",), now: int = 1_000_000, **settings: Any) -> None:
        settings.setdefault("initial_rebalance_delay_ms", 0)
        self.config = GroupConfig(**settings)
        self.now = now
        self.log: list[Append] = []
        self.image = image_of(*topics)
        self.answers: dict[int, Any] = {}
        self.events: list[Rebalanced] = []
        self._request_id = 0
        self._uuids = 0
        self._start()

    def _start(self) -> None:
        self.shard = GroupShard(self.config, self._make_uuid)
        for offset, record in enumerate(self.log):
            self.shard.replay(offset, record.key, record.value, self.now)
        self.run(self.shard.on_loaded(self.now))
        self.run(self.shard.on_image(self.image, self.now))

    def _make_uuid(self) -> str:
        self._uuids += 1
        return f"uuid{self._uuids}"

    # --- what happens -------------------------------------------------------------------------------------

    def run(self, effects: Effects) -> Effects:
        for record in effects.records:
            self.shard.replay(len(self.log), record.key, record.value, self.now, *(effects.producer or ()))
            self.log.append(record)
        for reply in effects.replies:
            assert reply.request_id not in self.answers, "a request was answered twice"
            self.answers[reply.request_id] = reply.response
        self.events += effects.events
        return effects

    def ask(self, method: str, request: Any, *, version: int | None = None, client: str = "client") -> int:
        """Sends a request and gives its id; the answer, when there is one, is in `answers`."""
        self._request_id += 1
        call = getattr(self.shard, method)
        if method in ("heartbeat",):
            self.run(call(request, self._request_id, self.now))
        else:
            info = RequestInfo(version if version is not None else request.versions[-1], client, "/127.0.0.1")
            self.run(call(request, info, self._request_id, self.now))
        return self._request_id

    def wait(self, milliseconds: int) -> None:
        """Time passes; what falls due happens at its moment."""
        end = self.now + milliseconds
        for _ in range(100_000):
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.run(self.shard.tick(self.now))
        self.now = end

    def fail_over(self) -> None:
        """Another broker takes the partition: everyone who waits is told, and the log is replayed."""
        self.run(self.shard.on_unloaded())
        self._start()

    def delete_topic(self, name: str) -> None:
        topics = tuple(topic for topic in self.image.topics if topic != name)
        self.image = image_of(*topics, version=self.image.version + 1)
        self.run(self.shard.on_image(self.image, self.now))

    # --- members ------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        protocols: dict[str, bytes] | None = None,
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client: str = "client",
        protocol_type: str = "consumer",
        reason: str | None = None,
    ) -> int:
        offered = {"range": subscription("orders")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in offered.items()],
            reason=reason,
        )
        return self.ask("join", request, version=version, client=client)

    def enter(self, client: str = "client", **options: Any) -> tuple[str, int]:
        """Both rounds of a first join (KIP-394): the member id, and the request that waits under it."""
        first = self.join(client=client, **options)
        answer = self.answers[first]
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, answer
        return answer.member_id, self.join(answer.member_id, client=client, **options)

    def sync(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None, **assigned: bytes
    ) -> int:
        """`assigned` maps member ids to assignments; only the leader's are heard."""
        return self.sync_with(member_id, generation, assigned, group=group, instance=instance)

    def sync_with(
        self,
        member_id: str,
        generation: int,
        assigned: dict[str, bytes],
        *,
        group: str = "g",
        instance: str | None = None,
        version: int = 5,
        protocol: str | None = None,
        protocol_type: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_name=protocol,
            protocol_type=protocol_type,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in assigned.items()
            ],
        )
        return self.ask("sync", request, version=version)

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        answered = self.code(self.ask("heartbeat", request))
        assert answered is not None, "a heartbeat is answered at once"
        return answered

    def leave(self, *members: str, group: str = "g", reason: str | None = None) -> Any:
        identities = [LeaveGroupRequest.MemberIdentity(member_id=m, reason=reason) for m in members]
        return self.answers[self.ask("leave", LeaveGroupRequest(group_id=group, members=identities))]

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        topic: str = "orders",
        partition: int = 0,
        metadata: str = "",
        instance: str | None = None,
        version: int = 9,
        retention_ms: int = -1,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
        )
        answer = self.answers[self.ask("commit_offsets", request, version=version)]
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, *, group: str = "g", topic: str = "orders", partition: int = 0) -> int | None:
        found = self.shard.offsets.find(group, topic, partition)
        return None if found is None else found.offset

    # --- what is seen -------------------------------------------------------------------------------------

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

    def settle(self, *clients: str, group: str = "g") -> dict[str, str]:
        """Brings clients into one stable group (each with one partition of `orders`) and gives their member ids."""
        entered = {client: self.enter(client, group=group) for client in clients}
        self.wait(0)
        for _ in range(len(clients) + 1):
            # Whoever joined after the first generation began makes everyone join again.
            if all(self.code(request) is not None for _, request in entered.values()):
                break
            for client, (member_id, request) in list(entered.items()):
                if self.code(request) is not None:
                    entered[client] = (member_id, self.join(member_id, client=client, group=group))
        ids = {client: member_id for client, (member_id, _) in entered.items()}
        generation = self.shard.groups[group].generation
        leader = self.shard.groups[group].leader_id
        assert leader is not None
        shares = {member_id: assignment(orders=[index]) for index, member_id in enumerate(ids.values())}
        for member_id in [m for m in ids.values() if m != leader] + [leader]:
            self.sync_with(member_id, generation, shares if member_id == leader else {}, group=group)
        assert self.state(group) == "Stable", self.state(group)
        return ids
