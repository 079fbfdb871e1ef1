"""A transactional producer and a read_committed reader made of raw requests, for stories that need every
protocol version, every fault and every moment, in a simulated world or against a real broker.

It follows the client's rules of the protocol and shares no code with the client this project ships.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.records.record_batch import ControlType, build_batch, iter_batches, read_end_marker, read_records
from ottla.protocol.schema import Message

RETRIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
RETRY_S = 0.02
ANSWER_TIMEOUT_S = 10.0
ATTEMPTS = 3_000


class Protocol(NamedTuple):
    """Which version of each request a producer speaks."""

    produce: int
    offset_commit: int
    end: int

    @property
    def adds_implicitly(self) -> bool:
        return self.produce >= 12


OLD = Protocol(produce=11, offset_commit=4, end=4)
"""Partitions are added by request; one epoch for all transactions of an instance."""
NEW = Protocol(produce=12, offset_commit=5, end=5)
"""KIP-890: partitions are added by writing to them; each transaction has its own epoch."""


class RawClient:
    """A client that reconnects and repeats its requests until it gets an answer."""

    def __init__(self, bootstrap: str, client_id: str = "raw") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._client_id = client_id
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def __del__(self) -> None:
        """Stories drop clients without closing them; an open StreamWriter would then cause a ResourceWarning."""
        self.close()

    async def ask_once(self, request: Message, version: int) -> Any:
        """One attempt. Raises ConnectionError if the connection fails or no response arrives in time."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address)
            reader, writer = self._streams
            self._correlation_id += 1
            writer.write(encode_request(request.api_key, version, self._correlation_id, self._client_id, request))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            raise ConnectionError(f"{type(request).__name__}: {error!r}") from None
        answered, response = decode_response(request.api_key, version, frame)
        assert answered == self._correlation_id, "responses must come in the order of the requests"
        return response

    async def ask(self, request: Message, version: int, codes: Callable[[Any], Sequence[int]]) -> Any:
        """Repeats the request while `codes` finds retriable errors in the response. Raises KafkaError for others."""
        code = ErrorCode.NONE
        for _ in range(ATTEMPTS):
            try:
                response = await self.ask_once(request, version)
            except ConnectionError:
                await asyncio.sleep(RETRY_S)
                continue
            bad = [ErrorCode(each) for each in codes(response) if each]
            if not bad:
                return response
            code = next((each for each in bad if each not in RETRIED), bad[0])
            if code not in RETRIED:
                raise KafkaError(code, type(request).__name__)
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{type(request).__name__}: no success after {ATTEMPTS} attempts, last error {code!r}")

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=n.replace("_", "."), value=v) for n, v in configs.items()
            ],
        )
        try:
            await self.ask(
                CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 7, lambda r: [t.error_code for t in r.topics]
            )
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def find_coordinator(self, key: str, key_type: int) -> None:
        await self.ask(FindCoordinatorRequest(key=key, key_type=key_type), 3, lambda r: [r.error_code])

    # --- reading ------------------------------------------------------------------------------------------

    async def fetch(self, topic: str, partition: int, offset: int, *, isolation: int) -> Any:
        """One partition's part of a Fetch v11 answer."""
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            isolation_level=isolation,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
        )
        response = await self.ask(
            request, 11, lambda r: [r.error_code, *(p.error_code for t in r.responses for p in t.partitions)]
        )
        return response.responses[0].partitions[0]

    async def end_offset(self, topic: str, partition: int, *, isolation: int) -> int:
        """The last stable offset (1) or the high watermark (0)."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)],
                )
            ],
        )
        response = await self.ask(request, 5, lambda r: [p.error_code for t in r.topics for p in t.partitions])
        return int(response.topics[0].partitions[0].offset)

    async def read(
        self, topic: str, partition: int, start: int = 0, *, committed: bool = True, limit: int | None = None
    ) -> tuple[list[tuple[int, bytes]], int]:
        """(offset, value) of what a reader sees from `start` to the current end, and the offset after it."""
        end = await self.end_offset(topic, partition, isolation=int(committed))
        found: list[tuple[int, bytes]] = []
        offset = start
        while offset < end and (limit is None or len(found) < limit):
            part = await self.fetch(topic, partition, offset, isolation=int(committed))
            visible, following = visible_records(part, offset, committed=committed)
            found += visible
            assert following > offset, f"{topic}-{partition}: nothing to read at {offset} below {end}"
            offset = following
        if limit is not None and len(found) > limit:
            return found[:limit], found[limit][0]
        return found, offset

    async def committed_offset(self, group: str, topic: str, partition: int, *, stable: bool = True) -> int:
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=stable,
        )
        response = await self.ask(
            request, 7, lambda r: [r.error_code, *(p.error_code for t in r.topics for p in t.partitions)]
        )
        return int(response.topics[0].partitions[0].committed_offset)


def visible_records(part: Any, start: int, *, committed: bool) -> tuple[list[tuple[int, bytes]], int]:
    """What an application is shown of a fetched partition, by the client's rules, and where it fetches next."""
    waiting = sorted(part.aborted_transactions or [], key=lambda aborted: aborted.first_offset)
    aborted_now: set[int] = set()
    found: list[tuple[int, bytes]] = []
    following = start
    data = bytes(part.records or b"")
    for position, header in iter_batches(data):
        following = header.next_offset
        if committed:
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted_now.add(waiting.pop(0).producer_id)
        if header.is_control:
            if header.record_count:
                kind, _ = read_end_marker(data[position : position + header.size_bytes])
                if kind is ControlType.ABORT:
                    aborted_now.discard(header.producer_id)
            continue
        if committed and header.is_transactional and header.producer_id in aborted_now:
            continue
        found += [(r.offset, r.value or b"") for r in read_records(data, position, header) if r.offset >= start]
    return found, following


class TransactionalProducer:
    """One instance of a transactional producer. KafkaError means that this instance is fenced or must abort."""

    def __init__(
        self,
        client: RawClient,
        transactional_id: str,
        protocol: Protocol = NEW,
        *,
        timeout_ms: int = 60_000,
        clock: Callable[[], int] = lambda: 1_700_000_000_000,
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.producer_id = self.producer_epoch = -1
        self._clock = clock
        self._sequences: dict[tuple[str, int], int] = {}
        self.added: set[tuple[str, int] | str] = set()

    async def start(self) -> None:
        await self.client.find_coordinator(self.transactional_id, 1)
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        response = await self.client.ask(request, 4, lambda r: [r.error_code])
        self.use(response.producer_id, response.producer_epoch)

    def use(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self._sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.added.clear()

    @property
    def _ids(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    async def send(self, topic: str, partition: int, values: Sequence[bytes]) -> int:
        """Sends one batch; returns its base offset."""
        where = (topic, partition)
        if not self.protocol.adds_implicitly and where not in self.added:
            await self.add(topic, partition)
        self.added.add(where)
        sequence = self._sequences.get(where, 0)
        request = self.produce_request(topic, partition, values, sequence)
        response = await self.client.ask(
            request,
            self.protocol.produce,
            lambda r: [p.error_code for t in r.responses for p in t.partition_responses],
        )
        self._sequences[where] = sequence + len(values)
        return int(response.responses[0].partition_responses[0].base_offset)

    def produce_request(self, topic: str, partition: int, values: Sequence[bytes], sequence: int) -> ProduceRequest:
        records = build_batch(
            [(self._clock(), b"k", value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return ProduceRequest(
            acks=-1,
            timeout_ms=5_000,
            transactional_id=self.transactional_id,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)]
                )
            ],
        )

    async def add(self, topic: str, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        await self.client.ask(
            request,
            3,
            lambda r: [p.partition_error_code for t in r.results_by_topic_v3_and_below for p in t.results_by_partition],
        )

    async def send_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        generation: int = -1,
        member_id: str = "",
    ) -> None:
        await self.client.find_coordinator(group, 0)
        if not self.protocol.adds_implicitly and group not in self.added:
            await self.client.ask(AddOffsetsToTxnRequest(**self._ids, group_id=group), 3, lambda r: [r.error_code])
        self.added.add(group)
        await self.client.ask(
            self.offsets_request(group, offsets, generation=generation, member_id=member_id),
            self.protocol.offset_commit,
            lambda r: [p.error_code for t in r.topics for p in t.partitions],
        )

    def offsets_request(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, generation: int = -1, member_id: str = ""
    ) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            **self._ids,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )

    async def commit(self) -> None:
        await self._end(commit=True)

    async def abort(self) -> None:
        await self._end(commit=False)

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(**self._ids, committed=commit)

    async def _end(self, *, commit: bool) -> None:
        if not self.added:
            return  # a client does not bother the coordinator with a transaction that has nothing in it
        response = await self.client.ask(self.end_request(commit=commit), self.protocol.end, lambda r: [r.error_code])
        if self.protocol.end >= 5:
            self.use(response.producer_id, response.producer_epoch)
        self.added.clear()
