"""Attacks on groups: huge members, abandoned groups, listings, and commits of very many or very long offsets."""

import asyncio
import contextlib

from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from tests.support.hostile.battlefield import Battlefield, frame
from tests.support.hostile.topics_used import LARGE

HUGE = "hostile-huge"
METADATA_BYTES = 1_000_000
JOIN_VERSION = 3
"""Versions before 4 let a member join with its first request."""


def join_request(group_id: str, metadata: bytes = b"") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def commit_request(group_id: str, partitions: range, metadata: str = "") -> OffsetCommitRequest:
    offsets = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata=metadata
        )
        for index in partitions
    ]
    return OffsetCommitRequest(
        group_id=group_id,
        member_id="",
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=LARGE, partitions=offsets)],
    )


async def groups(field: Battlefield) -> None:
    with await field.connect() as peer:
        # The first group creates the topic of the offsets.
        await peer.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[HUGE]), 4)
    async with asyncio.TaskGroup() as group:
        for work in (_huge_members, _abandoned, _committed, _listings, _wide_commits, _long_metadata):
            group.create_task(work(field))


async def _huge_members(field: Battlefield) -> None:
    """Members with 1 MB of metadata each join one group. They never sync, and read nothing."""
    data = frame(join_request(HUGE, bytes(METADATA_BYTES)), JOIN_VERSION)
    with contextlib.ExitStack() as stack:
        beats = field.beats(field.numbers.huge_members_per_s)
        async for _ in beats:
            if field.counts["groups: huge members"] >= field.numbers.huge_members:
                break
            with field.failures("groups"):
                peer = stack.enter_context(await field.connect())
                await peer.send(data)
                field.counts["groups: huge members"] += 1
        await beats.aclose()
        while field.goes_on:
            await field.pause(1.0)


async def _abandoned(field: Battlefield) -> None:
    """Groups whose only member joins and never comes back."""
    async for _ in field.beats(field.numbers.groups_per_s):
        with field.failures("groups"), await field.connect(source="127.0.0.5") as peer:
            field.counts["groups: abandoned"] += 1
            await peer.send(frame(join_request(f"abandoned-{field.counts['groups: abandoned']}"), JOIN_VERSION))
            await field.pause(0.01)


async def _committed(field: Battlefield) -> None:
    """Groups that exist only because of a commit."""
    while field.goes_on:
        with field.failures("groups"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.groups_per_s):
                await peer.ask(commit_request(f"committed-{field.counts['groups: committed']}", range(4)), 7)
                field.counts["groups: committed"] += 1


async def _listings(field: Battlefield) -> None:
    while field.goes_on:
        with field.failures("groups"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.lists_per_s):
                await peer.ask_frame(frame(ListGroupsRequest(), 4))
                names = [HUGE, *(f"abandoned-{number}" for number in range(100))]
                await peer.ask_frame(frame(DescribeGroupsRequest(groups=names), 4))
                field.counts["groups: listings"] += 1


async def _wide_commits(field: Battlefield) -> None:
    """Commits of 10,000 partitions at once."""
    data = frame(commit_request("hostile-wide", range(10_000)), 7)
    while field.goes_on:
        with field.failures("groups"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.wide_commits_per_s):
                await peer.ask_frame(data)
                field.counts["groups: commits of 10,000 partitions"] += 1


async def _long_metadata(field: Battlefield) -> None:
    """Commits with metadata strings of 32 kB, for 100 partitions each."""
    data = frame(commit_request("hostile-long", range(100), "m" * 32_000), 7)
    while field.goes_on:
        with field.failures("groups"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.wide_commits_per_s):
                await peer.ask_frame(data)
                field.counts["groups: commits with long metadata"] += 1
