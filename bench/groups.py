"""Consumer groups: heartbeats and commits per second, time of a rebalance, load time of a large coordinator.

Uses plain sockets and clients that respond immediately, so that mainly the broker is measured.
"""

import gc
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import startup
from bench.brokers import Contender, scratch
from bench.process_memory import resident_bytes
from bench.results import Results
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.schema import Message
from ottla.types import partition_for
from tests.support.wire.group_requests import (
    assignment,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    offsets_request,
    sync_request,
)
from tests.support.wire.raw import RawConnection

SUITE = "groups"
LOADING = "coordinator load"
CONNECTIONS = 16
MEMBERS = (2, 10, 100)
SESSION_MS = 300_000
NOW = 1_700_000_000_000

Figures = dict[tuple[str, str, bool], float]
"""(measure, unit, whether more is better) to value."""


def run(contenders: list[Contender], results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    # The mock cluster implements groups only partly and stores no offsets.
    contenders = [contender for contender in contenders if contender.name != "mock"]
    step(total=(rounds + 1) * 3 * len(contenders) + 5)
    for round_number in range(rounds + 1):
        turn = round_number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            figures = measure(contender, round_number, quick, step)
            if round_number:
                for (label, unit, more), value in figures.items():
                    results.add(SUITE, label, unit, contender.name, value, more_is_better=more)
    load_in_process(results, 1 if quick else 3, quick, step)
    restart_with_commits([contender.name for contender in contenders], results, quick, step)


def measure(contender: Contender, round_number: int, quick: bool, step: Any) -> Figures:
    found: Figures = {}
    topic = f"groups-{time.monotonic_ns()}"
    contender.create_topic(topic, 100)
    wait_for_coordinator(contender.bootstrap)
    count = 4_000 if quick else 40_000
    step(f"{contender.name}: heartbeats")
    for depth in (1, 8):
        rate, cpu = heartbeats(contender, count, depth)
        found[f"heartbeats, {CONNECTIONS} members, {depth} in flight", "per s", True] = rate
        found[f"broker CPU, heartbeat, {depth} in flight", "µs", False] = cpu
    step(f"{contender.name}: commits")
    for partitions in (1, 100):
        rate, cpu = commits(contender, topic, count // (2 if partitions == 1 else 20), partitions)
        plural = "" if partitions == 1 else "s"
        found[f"commits of {partitions} partition{plural}, {CONNECTIONS} members", "per s", True] = rate
        found[f"broker CPU, commit of {partitions} partition{plural}", "µs", False] = cpu
    step(f"{contender.name}: rebalances")
    for members in MEMBERS:
        if members == 100 and quick and round_number > 1:
            continue
        found[f"member {members} joins, to a stable group", "ms", False] = rebalance(contender, members) * 1e3
    contender.delete_topic(topic)
    return found


# Members


class Member:
    """A group member with its own connection."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.connection = RawConnection(bootstrap, timeout_s=60, client_id="bench")
        self.group = group
        self.id = ""
        self.generation = -1

    def ask_for_id(self) -> None:
        self.id = self.connection.ask(join_request(group=self.group, session_ms=SESSION_MS), 9).member_id

    def post_join(self) -> None:
        request = join_request(self.id, group=self.group, session_ms=SESSION_MS, rebalance_ms=SESSION_MS)
        self.connection.post(request, 9)

    def must_rejoin(self) -> bool:
        answer = self.connection.ask(heartbeat_request(self.id, self.generation, group=self.group), 4)
        return bool(answer.error_code)

    def read(self, message: type[Message]) -> Any:
        frame = self.connection.receive()
        assert frame is not None, "the broker closed the connection"
        # Flexible: a correlation id and an empty tag section, then the body.
        response = message.decode(frame, message.versions[-1], 5)
        assert response.error_code == 0, response  # type: ignore[attr-defined]
        return response

    def close(self) -> None:
        self.connection.close()


def settle(members: list[Member]) -> None:
    """All members join and sync until the group is stable. New members already have a member id."""
    from ottla.protocol.messages.join_group import JoinGroupResponse
    from ottla.protocol.messages.sync_group import SyncGroupResponse

    # The last one is new. The others learn of it from a heartbeat; one is enough here.
    members[-1].post_join()
    while len(members) > 1 and not members[0].must_rejoin():
        pass
    for member in members[:-1]:
        member.post_join()
    leader = None
    for member in members:
        joined = member.read(JoinGroupResponse)
        member.generation = joined.generation_id
        if joined.leader == member.id:
            leader = member
    assert leader is not None
    shares = {member.id: assignment(orders=[number]) for number, member in enumerate(members)}
    for member in members:
        assigned = shares if member is leader else None
        member.connection.post(sync_request(member.id, member.generation, assigned, group=member.group), 5)
    for member in members:
        member.read(SyncGroupResponse)


def rebalance(contender: Contender, count: int) -> float:
    """Seconds from the JoinGroup of the last member until the group is stable; the others rejoin immediately."""
    group = f"rebalance-{time.monotonic_ns()}"
    members = [Member(contender.bootstrap, group) for _ in range(count)]
    # The first one alone: a new group does not wait for more members. Later joins wait for all known members.
    members[0].ask_for_id()
    settle(members[:1])
    if count > 2:
        for member in members[1:-1]:
            member.ask_for_id()
        settle(members[:-1])
    members[-1].ask_for_id()
    gc.collect()
    started = time.perf_counter()
    settle(members)
    took = time.perf_counter() - started
    leaving = leave_request(*((member.id, None) for member in members), group=group)
    members[0].connection.ask(leaving, 5)
    for member in members:
        member.close()
    return took


def wait_for_coordinator(bootstrap: str) -> None:
    """The first request creates the coordinator's topic, which takes Kafka a while."""
    deadline = time.monotonic() + 60
    with RawConnection(bootstrap) as connection:
        while time.monotonic() < deadline:
            (found,) = connection.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
            if found.error_code == 0:
                answer = connection.ask(offsets_request("g", version=7), 7)
                if answer.error_code == 0:
                    return
            time.sleep(0.05)
    raise TimeoutError("no coordinator was found")


# Request rates


def heartbeats(contender: Contender, count: int, depth: int) -> tuple[float, float]:
    """(heartbeats per second, broker CPU in microseconds per heartbeat)."""
    members = [Member(contender.bootstrap, f"beat-{number}-{time.monotonic_ns()}") for number in range(CONNECTIONS)]
    for member in members:
        member.ask_for_id()
        settle([member])
    frames = [encode_request(12, 4, 1, "bench", heartbeat_request(m.id, m.generation, group=m.group)) for m in members]
    # Correlation id, tags, throttle time, error code, tags.
    result = drive(contender, members, frames, count, depth, lambda answer: answer[9:11] == b"\x00\x00")
    for member in members:
        member.connection.ask(leave_request((member.id, None), group=member.group), 5)
        member.close()
    return result


def commits(contender: Contender, topic: str, count: int, partitions: int) -> tuple[float, float]:
    """(commits per second, broker CPU in microseconds per commit), for members that only commit offsets."""
    members = [Member(contender.bootstrap, f"commit-{number}") for number in range(CONNECTIONS)]
    offsets = dict.fromkeys(range(partitions), 42)
    frames = [encode_request(8, 8, 1, "bench", commit_request(offsets, topic=topic, group=m.group)) for m in members]
    expected = members[0].connection.ask(commit_request(offsets, topic=topic, group=members[0].group), 8)
    assert {part.error_code for part in expected.topics[0].partitions} == {0}
    body = expected.encode(8)
    result = drive(contender, members, frames, count, 4, lambda answer: answer[5:] == body)
    for member in members:
        member.close()
    return result


def drive(
    contender: Contender,
    members: list[Member],
    frames: list[bytes],
    count: int,
    depth: int,
    is_fine: Callable[[bytes], bool],
) -> tuple[float, float]:
    """Keeps `depth` requests in flight on each connection for `count` responses: (per second, broker CPU µs each)."""
    answered, asked = 0, 0
    cpu, started = contender.cpu_seconds(), time.perf_counter()
    with selectors.DefaultSelector() as selector:
        buffers = {}
        for member, frame in zip(members, frames, strict=True):
            sock = member.connection.socket
            selector.register(sock, selectors.EVENT_READ, (sock, frame))
            buffers[sock] = b""
            sock.sendall(frame * depth)
            asked += depth
        while answered < asked:
            for key, _ in selector.select():
                sock, frame = key.data
                data = buffers[sock] + sock.recv(1 << 18)
                position, found = 0, 0
                while len(data) - position >= 4:
                    size = int.from_bytes(data[position : position + 4], "big")
                    if len(data) - position - 4 < size:
                        break
                    assert is_fine(data[position + 4 : position + 4 + size]), "the broker rejected a request"
                    position += 4 + size
                    found += 1
                buffers[sock] = data[position:]
                answered += found
                more = min(found, count - asked)
                if more > 0:
                    sock.sendall(frame * more)
                    asked += more
    took = time.perf_counter() - started
    return answered / took, (contender.cpu_seconds() - cpu) / answered * 1e6


# Loading


def load_in_process(results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Replays a coordinator's partition into an empty shard, in slices like the runtime."""
    for number, (label, _) in enumerate(load_cases(quick)):
        step(f"load {label}")
        for _ in range(rounds):
            # In a separate process, so that its memory holds nothing else.
            command = [sys.executable, "-m", "bench.groups", str(number), "quick" if quick else "full"]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds, size = map(float, output.split())
            results.add(LOADING, label, "s", "ottla", seconds)
            results.add(LOADING, f"{label}: memory", "B each", "ottla", size)


def load_cases(quick: bool) -> list[tuple[str, Callable[[], Iterator[list[Any]]]]]:
    scale = 10 if quick else 1
    return [
        (f"{1_000_000 // scale:,} commits, 100 in a batch", lambda: commit_rows(10_000 // scale, 100)),
        (f"{1_000_000 // scale:,} commits, one in a batch", lambda: commit_rows(100_000 // scale, 10, apart=True)),
        (f"{100_000 // scale:,} groups of two members", lambda: group_rows(100_000 // scale)),
    ]


def load(number: int, quick: bool) -> tuple[float, float]:
    """(seconds, bytes of memory per record)."""
    from ottla.coordinator.group.config import GroupConfig
    from ottla.coordinator.group.shard import GroupShard
    from ottla.coordinator.replaying import replay_slice

    slices = list(in_slices(load_cases(quick)[number][1]()))
    gc.collect()
    before = resident_bytes()
    shard = GroupShard(GroupConfig(), lambda: "")
    started = time.perf_counter()
    count = 0
    for offset, data in slices:
        count += replay_slice(shard, data, offset)[1]
    shard.on_loaded(NOW)
    return time.perf_counter() - started, (resident_bytes() - before) / count


def commit_rows(groups: int, partitions: int, *, apart: bool = False) -> Iterator[list[Any]]:
    """A commit of each partition by each group: one batch per group, or one batch per commit."""
    from ottla.coordinator.group.records import CommittedOffset, offset_key, offset_value

    for number in range(groups):
        value = offset_value(CommittedOffset(number, 7, "", NOW, -1, bytes(range(16))))
        keys = [offset_key(f"group-{number:06}", "topic-000", partition) for partition in range(partitions)]
        rows: list[Any] = [(NOW, key, value, ()) for key in keys]
        if apart:
            yield from ([row] for row in rows)
        else:
            yield rows


def group_rows(groups: int) -> Iterator[list[Any]]:
    from ottla.coordinator.group.classic_group import ClassicGroup, Member
    from ottla.coordinator.group.records import group_key, group_value
    from tests.support.wire.group_requests import subscription

    for number in range(groups):
        group = ClassicGroup(f"group-{number:06}", NOW)
        group.generation, group.protocol = 3, "range"
        for index in range(2):
            member_id = f"client-{number:012}-0000-4000-8000-{index:012}"
            protocols = [("range", subscription("orders"))]
            part = assignment(orders=[index])
            group.add(Member(member_id, None, "client", "/127.0.0.1", 300_000, 45_000, protocols, part), "consumer")
        yield [(NOW, group_key(group.group_id), group_value(group.to_record()), ())]


def in_slices(batches: Iterator[list[Any]]) -> Iterator[tuple[int, bytes]]:
    """(first offset, batches) in slices of about the size that the runtime replays at once."""
    from ottla.coordinator.loading import SLICE_BYTES
    from ottla.protocol.records.record_batch import build_batch

    start = offset = 0
    data = bytearray()
    for rows in batches:
        data += build_batch(rows, base_offset=offset)
        offset += len(rows)
        if len(data) >= SLICE_BYTES:
            yield start, bytes(data)
            start, data = offset, bytearray()
    if data:
        yield start, bytes(data)


def restart_with_commits(names: list[str], results: Results, quick: bool, step: Any) -> None:
    """Time from a broker's start to its first OffsetFetch response, with very many commits in one partition."""
    partitions, total = 100, 100_000 if quick else 1_000_000
    groups = [name for name in (f"g{n}" for n in range(10**7)) if partition_for(name, 50) == 7][: total // partitions]
    with scratch() as directory:
        for name in [name for name in names if name in startup.STARTERS]:
            step(f"{name}: restart with {total:,} commits")
            with startup.STARTERS[name](directory / name) as started:
                started.contender.create_topic("wide", partitions)
                wait_for_coordinator(started.contender.bootstrap)
                fill(started.contender, groups, partitions)
            with startup.STARTERS[name](directory / name) as started:
                ready = time.perf_counter()
                await_offset(started.contender.bootstrap, groups[-1])
                loaded = started.seconds + time.perf_counter() - ready
                results.add(LOADING, f"restart to first response, {total:,} commits", "s", name, loaded)
                results.add(LOADING, f"memory, {total:,} commits", "MB", name, started.contender.memory_mb())


def fill(contender: Contender, groups: list[str], partitions: int) -> None:
    members = [Member(contender.bootstrap, "") for _ in range(4)]
    offsets = dict.fromkeys(range(partitions), 42)
    for number in range(0, len(groups), len(members)):
        some = groups[number : number + len(members)]
        for member, group in zip(members, some, strict=False):
            member.connection.post(commit_request(offsets, topic="wide", group=group), 8)
        for member, _ in zip(members, some, strict=False):
            frame = member.connection.receive()
            assert frame is not None
    for member in members:
        member.close()


def await_offset(bootstrap: str, group: str) -> None:
    deadline = time.monotonic() + 300
    request = offsets_request(group, version=7, topics={"wide": [0]})
    while time.monotonic() < deadline:
        with RawConnection(bootstrap) as connection:
            answer = connection.ask(request, 7)
            if answer.error_code == 0 and answer.topics[0].partitions[0].committed_offset == 42:
                return
        time.sleep(0.01)
    raise TimeoutError(f"{group} was not loaded")


if __name__ == "__main__":
    print(*load(int(sys.argv[1]), sys.argv[2] == "quick"))
