"""Groups whose members pause, die and return while their coordinator moves. Spec: R5, B2, B3, B4, B5, B6

Always: a partition has at most one owner per generation, and commits of an older generation are refused. When the
faults stop, the group becomes stable with all its members.
"""

import random
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.framing import decode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from tests.support.seeds import each_seed
from tests.support.worlds.group_world import GroupWorld, assignment

PARTITIONS = 6
SESSION_MS = 10_000
OWNERSHIP = dict[tuple[int, int], str]


class Client:
    """A consumer as the coordinator sees it: it joins, syncs, heartbeats and commits, and may be silent for a while."""

    def __init__(self, world: GroupWorld, name: str, owners: OWNERSHIP, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.owners = owners
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.partitions: list[int] = []
        self.waiting: tuple[str, int] | None = None
        self.silent_until = 0
        self.is_gone = False

    def step(self) -> None:
        """Handles the response it waits for, or sends a heartbeat."""
        if self.is_gone or self.world.now < self.silent_until:
            return
        if self.waiting is None:
            if self.generation < 0:
                self.join()
            else:
                self.heard(self.world.heartbeat(self.member_id, self.generation, instance=self.instance))
            return
        kind, request = self.waiting
        answer = self.world.answers.get(request)
        if answer is None:
            return
        self.waiting = None
        if isinstance(answer, KafkaError):
            self.start_over(answer.code)
        elif kind == "join":
            self.joined(answer)
        else:
            self.synced(answer)

    def join(self) -> None:
        request = self.world.join(
            self.member_id, client=self.name, instance=self.instance, session_ms=SESSION_MS, rebalance_ms=20_000
        )
        self.waiting = ("join", request)

    def joined(self, answer: Any) -> None:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        if code is not ErrorCode.NONE:
            self.start_over(code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.partitions = []
        shares: dict[str, bytes] = {}
        members = [member.member_id for member in answer.members]
        if members and not answer.skip_assignment:
            for index, member in enumerate(members):
                shares[member] = assignment(orders=[p for p in range(PARTITIONS) if p % len(members) == index])
        sync = self.world.sync(self.member_id, self.generation, shares, instance=self.instance)
        self.waiting = ("sync", sync)

    def synced(self, answer: Any) -> None:
        if answer.error_code:
            self.start_over(ErrorCode(answer.error_code))
            return
        data = answer.assignment
        parts = decode_versioned(ConsumerProtocolAssignment, data).assigned_partitions if data else []
        self.partitions = [partition for part in parts for partition in part.partitions]
        for partition in self.partitions:
            owner = self.owners.setdefault((self.generation, partition), self.name)
            assert owner == self.name, f"{owner} and {self.name} own {partition} in generation {self.generation}"

    def heard(self, code: ErrorCode | None) -> None:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        elif code is not ErrorCode.NONE and code is not None:
            self.start_over(code)

    def start_over(self, code: ErrorCode) -> None:
        if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.join()
            return
        assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID), code
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        self.generation, self.partitions = -1, []

    def commit(self) -> None:
        if self.partitions and self.waiting is None and not self.is_gone:
            code = self.world.commit(
                self.world.now, member_id=self.member_id, generation=self.generation, instance=self.instance
            )
            current = self.world.shard.groups["g"]
            if code is ErrorCode.NONE:
                assert current.generation == self.generation
                assert self.member_id in current.members


@each_seed(40)
def test_a_group_becomes_stable_after_random_member_faults(seed: int) -> None:
    rng = random.Random(seed)
    world = GroupWorld(group_initial_rebalance_delay_ms=rng.choice((0, 500, 3_000)))
    owners: OWNERSHIP = {}
    clients = [
        Client(world, f"c{i}", owners, f"i{i}" if rng.random() < 0.3 else None) for i in range(rng.randint(1, 6))
    ]
    try:
        for _ in range(300):
            world.wait(rng.randint(0, 3_000))
            client = rng.choice(clients)
            match rng.random():
                case x if x < 0.05:
                    client.silent_until = world.now + rng.randint(0, 3 * SESSION_MS)
                case x if x < 0.08:
                    # A new process under the same name: the old one's member id is lost, its instance id is not.
                    client.member_id, client.generation, client.waiting, client.partitions = "", -1, None, []
                case x if x < 0.10 and client.member_id and client.waiting is None:
                    world.leave(client.member_id)
                    client.member_id, client.generation, client.partitions = "", -1, []
                case x if x < 0.12:
                    world.fail_over()
                case x if x < 0.3:
                    client.commit()
                case _:
                    for each in clients:
                        each.step()
        for client in clients:
            client.silent_until = 0
        for _ in range(200):
            world.wait(1_000)
            for client in clients:
                client.step()
        group = world.shard.groups["g"]
        assert world.state() == "Stable"
        assert {client.member_id for client in clients} == set(group.members)
        assert {client.generation for client in clients} == {group.generation}
        assert sorted(p for client in clients for p in client.partitions) == list(range(PARTITIONS))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
