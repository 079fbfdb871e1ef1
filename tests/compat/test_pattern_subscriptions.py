"""A topic that matches the pattern of a group appears: one rebalance, with Ottla's consumer as with Kafka's own.

Members find the topic at different times, whenever they refresh their metadata. The first one starts a rebalance, and
the others look for topics before they rejoin, so that nobody has to start another.
"""

import time
from collections.abc import Iterator

import pytest

from ottla import Admin
from tests.support.clients.members import JavaMember, Member, await_true
from tests.support.clients.own_member import OttlaMember
from tests.support.processes.oracle import Target

MAX_AGE_MS = 1500
"""Longer than the back-off between two requests for metadata, shorter than anybody wants to wait."""
KINDS: dict[str, tuple[type[Member], ...]] = {
    "java": (JavaMember,) * 3,
    "ottla": (OttlaMember,) * 3,
    "both": (JavaMember, OttlaMember, OttlaMember),
}


@pytest.fixture(scope="module", autouse=True)
def _close_java() -> Iterator[None]:
    yield
    JavaMember.close_client()


@pytest.mark.java
@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_appears_causes_one_rebalance(ottla: Target, topic: str, kind: str) -> None:
    """Spec: B6"""
    if (reason := JavaMember.unavailable()) is not None and kind != "ottla":
        pytest.skip(reason)
    members: list[Member] = []
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.create_topic(f"{topic}-a", partitions=3)
        try:
            for number, member in enumerate(KINDS[kind]):
                members.append(
                    member(
                        ottla.bootstrap,
                        f"g-{topic}",
                        [f"^{topic}-.*"],
                        client_id=f"{member.name}-{number}",
                        session_timeout_ms=60_000,
                        metadata_max_age_ms=MAX_AGE_MS,
                    ).start()
                )
                # One after the other, so that they refresh their metadata at different times.
                await_share(members, 3)
                time.sleep(MAX_AGE_MS / 4000)
            before = [rebalances(member) for member in members]
            admin.create_topic(f"{topic}-b", partitions=3)
            await_share(members, 6)
            time.sleep(2 * MAX_AGE_MS / 1000)  # all members have refreshed again
            assert [rebalances(member) - earlier for member, earlier in zip(members, before, strict=True)] == [1, 1, 1]
        finally:
            for each in members:
                each.stop()


def rebalances(member: Member) -> int:
    return sum(event.what == "assigned" for event in member.events)


def await_share(members: list[Member], partitions: int) -> None:
    """Every partition has one owner, and every member has some."""

    def is_shared() -> bool:
        shares = [set(member.assignment) for member in members]
        return all(shares) and sum(map(len, shares)) == len(set().union(*shares)) == partitions

    await_true(f"{partitions} partitions are shared", is_shared, members)
