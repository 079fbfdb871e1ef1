"""What ACLs cost: each partition of Fetch and Produce, a decision that is not cached, and a change of many ACLs.

CPU time of this process. Handlers run with and without an authorizer in turn, and the difference is the cost.
"""

import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.results import Results
from ottla.broker.dispatch import handler_for
from ottla.broker.handlers import produce as produce_handler
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.security.acls import AccessControlEntry, ResourcePattern
from ottla.security.authorizer import Authorizer
from ottla.security.principal import Principal
from ottla.security.resources import Operation, PatternType, PermissionType, Resource, ResourceType
from tests.support.worlds.data_world import DataWorld, Peer

SUITE = "acls"
TOPICS, PARTITIONS = 20, 10
GOAL_NS = 1000
ALICE = Principal("User", "alice")
HOST = "10.0.0.7"


class Alice(Peer):
    """The connection of user alice."""

    principal = ALICE


def many_acls(count: int) -> dict[ResourcePattern, tuple[AccessControlEntry, ...]]:
    """ACLs as a large cluster has them: every tenth is prefixed, and alice has a few."""
    acls: dict[ResourcePattern, tuple[AccessControlEntry, ...]] = {
        ResourcePattern(
            ResourceType.TOPIC, f"team-{number}.", PatternType.LITERAL if number % 10 else PatternType.PREFIXED
        ): (AccessControlEntry(f"User:user-{number}", "*", Operation.READ, PermissionType.ALLOW),)
        for number in range(count)
    }
    for operation in (Operation.READ, Operation.WRITE):
        pattern = ResourcePattern(ResourceType.TOPIC, f"t{operation}", PatternType.PREFIXED)
        acls[pattern] = (AccessControlEntry("User:nobody", "*", operation, PermissionType.DENY),)
    own = [
        AccessControlEntry("User:alice", "*", operation, PermissionType.ALLOW)
        for operation in (Operation.READ, Operation.WRITE)
    ]
    acls[ResourcePattern(ResourceType.TOPIC, "topic-", PatternType.PREFIXED)] = tuple(own)
    return acls


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    step(total=rounds)
    repeats = 20 if quick else 200
    acls = many_acls(10_000)
    with tempfile.TemporaryDirectory() as directory:
        world = DataWorld(directory)
        for number in range(TOPICS):
            world.topic(f"topic-{number}", partitions=PARTITIONS)
        authorizer = Authorizer(acls)
        context = Context(world.services, 12, "bench", Alice())  # type: ignore[arg-type]
        for _ in range(rounds):
            step("handlers")
            for name, call in (("Fetch", fetch_call(context)), ("Produce", produce_call(context))):
                plain, checked = costs(world, authorizer, call, repeats)
                cost = (checked - plain) / (TOPICS * PARTITIONS)
                results.add(SUITE, f"{name}, each partition (goal: {GOAL_NS} ns)", "ns", "ottla", cost * 1e9)
            results.add(SUITE, "decision, not cached, 10,000 ACLs", "us", "ottla", uncached(acls, repeats) * 1e6)
            results.add(
                SUITE, "new ACLs take effect, 10,000 ACLs", "ms", "ottla", timed(lambda: Authorizer(acls)) * 1e3
            )
        world.services.authorizer = None
        world.stop()


def fetch_call(context: Context) -> Callable[[], object]:
    """A fetch of all partitions, which are empty."""
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(
                topic=f"topic-{number}",
                partitions=[
                    FetchRequest.FetchPartition(partition=index, partition_max_bytes=1 << 20)
                    for index in range(PARTITIONS)
                ],
            )
            for number in range(TOPICS)
        ],
    )
    fetch = handler_for(ApiKey.FETCH)
    return lambda: fetch(request, context)


def produce_call(context: Context) -> Callable[[], object]:
    """The check of Produce for all its partitions, without the append, which costs far more and would hide it."""
    handler_for(ApiKey.PRODUCE)
    topics = [ProduceRequest.TopicProduceData(name=f"topic-{number}") for number in range(TOPICS)]
    indexes = range(PARTITIONS)

    def check() -> None:
        is_open = context.services.authorizer is None
        for topic in topics:
            is_allowed = is_open or produce_handler._may_write(topic, context)  # noqa: SLF001
            for _ in indexes:
                assert is_allowed

    return check


def costs(world: DataWorld, authorizer: Authorizer, call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds per call without and with an authorizer: the best of several, alternating."""
    plain, checked = [], []
    for _ in range(repeats):
        world.services.authorizer = None
        plain.append(timed(call))
        world.services.authorizer = authorizer
        checked.append(timed(call))
    world.services.authorizer = None
    return min(plain), min(checked)


def uncached(acls: dict[ResourcePattern, tuple[AccessControlEntry, ...]], repeats: int) -> float:
    authorizer = Authorizer(acls)
    resources = [Resource(ResourceType.TOPIC, f"topic-{number}") for number in range(repeats)]

    def decide() -> None:
        for resource in resources:
            assert authorizer.decide(ALICE, HOST, Operation.READ, resource).is_allowed

    return timed(decide) / repeats


def timed(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
