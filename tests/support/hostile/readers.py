"""Attacks with responses: peers that request gigabytes and never read, and peers that reset the connection."""

import asyncio

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from tests.support.hostile.battlefield import Battlefield, frame
from tests.support.hostile.topics_used import LARGE, LARGE_PARTITIONS, fetch_request

SMALL_BUFFER = 4096
PIPELINED = 200
FETCH = frame(fetch_request(), 11)
LIST_OFFSETS = frame(
    ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=LARGE,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                    for index in range(LARGE_PARTITIONS)
                ],
            )
        ],
    ),
    5,
)
QUESTIONS = (
    frame(MetadataRequest(topics=None), 9),
    frame(ApiVersionsRequest(client_software_name="hostile", client_software_version="1"), 3),
    LIST_OFFSETS,
)


async def non_readers(field: Battlefield) -> None:
    """Half of the peers request fetches of 2 GB, half pipeline small requests. None of them reads."""
    async with asyncio.TaskGroup() as group:
        for number in range(field.numbers.non_readers):
            is_fetch = number % 2 == 0
            name = "fetches" if is_fetch else "small requests"
            data = FETCH * 5 if is_fetch else QUESTIONS[number // 2 % len(QUESTIONS)] * PIPELINED
            group.create_task(_never_read(field, name, data))
            await asyncio.sleep(0.02)


async def _never_read(field: Battlefield, name: str, data: bytes) -> None:
    while field.goes_on:
        with field.failures("non-readers"), await field.connect(receive_buffer=SMALL_BUFFER) as peer:
            field.counts[f"non-readers: {name}"] += 1
            while field.goes_on:
                # Goes on until the broker reads no more, and notices when the broker ends the connection.
                peer.send_what_fits(data)
                await field.pause(2.0)
        await field.pause(1.0)


async def fetch_and_reset(field: Battlefield) -> None:
    """Pipelines fetches of 2 GB each, reads nothing, and resets the connection."""
    waits = (0.0, 0.01, 0.1, 0.5)
    async with asyncio.TaskGroup() as group:
        async for _ in field.beats(field.numbers.resets_per_s):
            wait = waits[field.counts["fetch and reset: connections"] % len(waits)]
            field.counts["fetch and reset: connections"] += 1
            group.create_task(_fetch_then_reset(field, wait))


async def _fetch_then_reset(field: Battlefield, wait: float) -> None:
    with field.failures("fetch and reset"):
        peer = await field.connect(receive_buffer=SMALL_BUFFER)
        try:
            await peer.send(FETCH * field.numbers.fetches_before_reset)
            await field.pause(wait)
        finally:
            peer.reset()
