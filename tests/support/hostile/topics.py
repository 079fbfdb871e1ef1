"""Attacks that leave state behind: topics, producer ids, fetch sessions, transactions; and wide descriptions."""

import asyncio
import itertools

from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.records.record_batch import build_batch
from tests.support.hostile.battlefield import Battlefield, frame
from tests.support.hostile.topics_used import LARGE, PLAIN, create_request, fetch_request, produce_request

NAMES_AT_ONCE = 100
WIDE = 5000
"""Names or partitions in one wide request."""


async def topics(field: Battlefield) -> None:
    works = (_create_and_delete, _automatic, _unknown_names, _producer_ids, _sessions, _transactions, _descriptions)
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work(field))


async def _create_and_delete(field: Battlefield) -> None:
    while field.goes_on:
        with field.failures("topics"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.topics_per_s):
                name = f"hostile-short-{field.counts['topics: created and deleted']}"
                await peer.ask(create_request(name, field.numbers.topic_partitions), 6)
                await peer.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), 5)
                field.counts["topics: created and deleted"] += 1


async def _automatic(field: Battlefield) -> None:
    """Metadata requests for unknown topics create them, a hundred at a time, up to a number."""
    beats = field.beats(0.5)
    async for _ in beats:
        start = field.counts["topics: automatic"]
        if start >= field.numbers.automatic_topics:
            break
        names = [f"hostile_auto_{number}" for number in range(start, start + NAMES_AT_ONCE)]
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        with field.failures("topics"), await field.connect() as peer:
            await peer.ask(MetadataRequest(topics=wanted), 9)
            field.counts["topics: automatic"] += NAMES_AT_ONCE
    await beats.aclose()


async def _unknown_names(field: Battlefield) -> None:
    wanted = [MetadataRequest.MetadataRequestTopic(name=f"unknown-{number}") for number in range(WIDE)]
    data = frame(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 9)
    while field.goes_on:
        with field.failures("topics"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.descriptions_per_s):
                await peer.ask_frame(data)
                field.counts["topics: metadata of 5,000 unknown names"] += 1


async def _producer_ids(field: Battlefield) -> None:
    """New producer ids, each of which writes one record and is never seen again."""
    while field.goes_on:
        with field.failures("topics"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.producers_per_s):
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                found = await peer.ask(request, 4)
                field.counts["topics: producer ids"] += 1
                if found.error_code == 0:
                    batch = build_batch(
                        [(1_700_000_000_000, None, b"x", ())],
                        producer_id=found.producer_id,
                        producer_epoch=found.producer_epoch,
                        base_sequence=0,
                    )
                    await peer.ask_frame(frame(produce_request(PLAIN, batch), 9))


async def _sessions(field: Battlefield) -> None:
    """Fetch sessions that are opened and never used; every fiftieth has thousands of partitions."""
    narrow = frame(fetch_request(max_bytes=1, session_epoch=0), 11)
    wide = frame(fetch_request(max_bytes=1, session_epoch=0, partitions=range(WIDE)), 11)
    while field.goes_on:
        with field.failures("topics"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.sessions_per_s):
                is_wide = field.counts["topics: fetch sessions"] % 50 == 49
                await peer.ask_frame(wide if is_wide else narrow)
                field.counts["topics: fetch sessions"] += 1


async def _transactions(field: Battlefield) -> None:
    """Transactions that are opened and abandoned."""
    for number in itertools.count():
        if not field.goes_on:
            break
        with field.failures("topics"), await field.connect() as peer:
            name = f"hostile-{number}"
            await peer.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
            async for _ in field.beats(field.numbers.transactions_per_s):
                name = f"hostile-{number}-{field.counts['topics: transactions']}"
                found = await peer.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
                field.counts["topics: transactions"] += 1
                if found.error_code == 0:
                    opened = AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=name,
                        v3_and_below_producer_id=found.producer_id,
                        v3_and_below_producer_epoch=found.producer_epoch,
                        v3_and_below_topics=[
                            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=PLAIN, partitions=[0])
                        ],
                    )
                    await peer.ask(opened, 3)


async def _descriptions(field: Battlefield) -> None:
    """DescribeConfigs of the same topic, hundreds of times in one request."""
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=LARGE, configuration_keys=None)
        for _ in range(500)
    ]
    data = frame(DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True), 3)
    while field.goes_on:
        with field.failures("topics"), await field.connect() as peer:
            async for _ in field.beats(field.numbers.descriptions_per_s):
                await peer.ask_frame(data)
                field.counts["topics: descriptions"] += 1
