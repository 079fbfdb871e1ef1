"""Transactional requests on one raw connection, with every field and version chosen by the script.

Answers are reduced to error codes and epochs; producer ids, which differ between brokers, to the order in which they
were first seen.
"""

from collections.abc import Callable
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from tests.support.waiting import until
from tests.support.wire.raw import RawConnection, batch

PATIENCE_S = 60.0
RETRIED = ("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")


def name_of(code: int) -> str:
    return ErrorCode(code).name


class RawTransactions:
    """One transactional id on one broker."""

    def __init__(self, connection: RawConnection, transactional_id: str) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.producer_epoch = -1
        self.seen: list[int] = []

    def find_coordinator(self, key: str | None = None, key_type: int = 1) -> None:
        request = FindCoordinatorRequest(key=key or self.transactional_id, key_type=key_type)
        self.until(lambda: self.connection.ask(request, 3).error_code, 0)

    def until(self, look: Callable[[], Any], wanted: Any) -> Any:
        """Retries for a while until the response is the wanted one; returns the last response."""
        return self._last(look, lambda found: bool(found == wanted))

    def patiently(self, ask: Callable[[], Any]) -> Any:
        """Retries while the coordinator is not found or completes the last transaction, as every client does."""
        return self._last(ask, lambda found: not any(word in str(found) for word in RETRIED))

    def _last(self, ask: Callable[[], Any], is_enough: Callable[[Any], bool]) -> Any:
        found: Any = None

        def is_answered() -> bool:
            nonlocal found
            found = ask()
            return is_enough(found)

        until(is_answered, PATIENCE_S)
        return found

    def label(self, producer_id: int) -> int:
        if producer_id not in self.seen:
            self.seen.append(producer_id)
        return self.seen.index(producer_id)

    # --- requests -----------------------------------------------------------------------------------------

    def init(
        self,
        version: int = 4,
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] | None = None,
        transactional_id: str | None = None,
        keep: bool = True,
        **more: Any,
    ) -> Any:
        """(which producer id, epoch) or the error's name. `keep`: the script continues with the result."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id if transactional_id is None else transactional_id,
            transaction_timeout_ms=timeout_ms,
            **more,
        )
        if expected is not None:
            request.producer_id, request.producer_epoch = expected

        def ask() -> Any:
            response = self.connection.ask(request, version)
            if response.error_code:
                return name_of(response.error_code)
            if keep:
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
            return (self.label(response.producer_id), response.producer_epoch)

        return self.patiently(ask)

    def start(self, version: int = 4, **options: Any) -> Any:
        """FindCoordinator, then InitProducerId."""
        self.find_coordinator()
        return self.init(version, **options)

    def _ids(self, producer_id: int | None, producer_epoch: int | None) -> tuple[int, int]:
        return (
            self.producer_id if producer_id is None else producer_id,
            self.producer_epoch if producer_epoch is None else producer_epoch,
        )

    def add(
        self,
        partitions: dict[str, list[int]],
        version: int = 3,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional_id: str | None = None,
        patient: bool = True,
    ) -> Any:
        """AddPartitionsToTxn v0-3: {partition: the error's name}."""
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id if transactional_id is None else transactional_id,
            v3_and_below_producer_id=used_id,
            v3_and_below_producer_epoch=used_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in partitions.items()
            ],
        )

        def ask() -> Any:
            response = self.connection.ask(request, version)
            return {
                f"{topic.name}-{part.partition_index}": name_of(part.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }

        return self.patiently(ask) if patient else ask()

    def add_from_broker(
        self,
        partitions: dict[str, list[int]],
        version: int = 4,
        *,
        verify_only: bool = True,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional_id: str | None = None,
    ) -> Any:
        """AddPartitionsToTxn v4-5, as brokers send it: (top level error, {partition: the error's name})."""
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=self.transactional_id if transactional_id is None else transactional_id,
                    producer_id=used_id,
                    producer_epoch=used_epoch,
                    verify_only=verify_only,
                    topics=[
                        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in partitions.items()
                    ],
                )
            ]
        )

        def ask() -> Any:
            response = self.connection.ask(request, version)
            return name_of(response.error_code), {
                f"{topic.name}-{part.partition_index}": name_of(part.partition_error_code)
                for result in response.results_by_transaction
                for topic in result.topic_results
                for part in topic.results_by_partition
            }

        return self.patiently(ask)

    def add_offsets(
        self,
        group: str,
        version: int = 3,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional_id: str | None = None,
    ) -> str:
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id if transactional_id is None else transactional_id,
            producer_id=used_id,
            producer_epoch=used_epoch,
            group_id=group,
        )
        return str(self.patiently(lambda: name_of(self.connection.ask(request, version).error_code)))

    def produce(
        self,
        topic: str,
        *values: bytes,
        version: int = 9,
        partition: int = 0,
        sequence: int = 0,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional: bool = True,
        transactional_id: str | None = "",
        patient: bool = True,
    ) -> Any:
        """The base offset, or the error's name."""
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        records = batch(
            *(values or (b"v",)),
            producer_id=used_id,
            producer_epoch=used_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        request = ProduceRequest(
            acks=-1,
            timeout_ms=5_000,
            transactional_id=self.transactional_id if transactional_id == "" else transactional_id,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)]
                )
            ],
        )

        def ask() -> Any:
            answer = self.connection.ask(request, version).responses[0].partition_responses[0]
            return name_of(answer.error_code) if answer.error_code else answer.base_offset

        return self.patiently(ask) if patient else ask()

    def commit_offsets(
        self,
        group: str,
        topic: str,
        offset: int,
        version: int = 3,
        *,
        partition: int = 0,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional_id: str | None = None,
        metadata: str = "",
        **member: Any,
    ) -> str:
        """TxnOffsetCommit: the error's name."""
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id if transactional_id is None else transactional_id,
            group_id=group,
            producer_id=used_id,
            producer_epoch=used_epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
            **member,
        )
        return str(
            self.patiently(lambda: name_of(self.connection.ask(request, version).topics[0].partitions[0].error_code))
        )

    def fetch_offset(self, group: str, topic: str, *, stable: bool = False, partition: int = 0) -> Any:
        """The committed offset, or the error's name."""
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=stable,
        )
        answer = self.connection.ask(request, 7).topics[0].partitions[0]
        return name_of(answer.error_code) if answer.error_code else answer.committed_offset

    def end(
        self,
        commit: bool,
        version: int = 3,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        transactional_id: str | None = None,
        patient: bool = True,
        keep: bool = True,
    ) -> Any:
        """The error's name, or from v5 on (which producer id, epoch)."""
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        request = EndTxnRequest(
            transactional_id=self.transactional_id if transactional_id is None else transactional_id,
            producer_id=used_id,
            producer_epoch=used_epoch,
            committed=commit,
        )

        def ask() -> Any:
            response = self.connection.ask(request, version)
            if response.error_code or version < 5:
                return name_of(response.error_code)
            if keep:
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
            return (self.label(response.producer_id), response.producer_epoch)

        return self.patiently(ask) if patient else ask()

    def write_markers(
        self,
        topic: str,
        *,
        commit: bool = False,
        partition: int = 0,
        coordinator_epoch: int = 0,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        version: int = 1,
        **more: Any,
    ) -> str:
        used_id, used_epoch = self._ids(producer_id, producer_epoch)
        request = WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequest.WritableTxnMarker(
                    producer_id=used_id,
                    producer_epoch=used_epoch,
                    transaction_result=commit,
                    coordinator_epoch=coordinator_epoch,
                    topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
                    **more,
                )
            ]
        )
        return name_of(self.connection.ask(request, version).markers[0].topics[0].partitions[0].error_code)

    # --- observations -------------------------------------------------------------------------------------

    def describe(self) -> Any:
        """(state, epoch, timeout, partitions), or the error's name."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        def ask() -> Any:
            (found,) = self.connection.ask(request, 0).transaction_states
            if found.error_code:
                return name_of(found.error_code)
            partitions = {topic.topic: sorted(topic.partitions) for topic in found.topics}
            return (found.transaction_state, found.producer_epoch, found.transaction_timeout_ms, partitions)

        return self.patiently(ask)

    def state(self) -> str:
        """The state, once no transaction is being completed."""
        self.until(lambda: str(self.describe()[0]).startswith("Prepare"), False)
        return str(self.describe()[0])

    def stable_offset(self, topic: str, partition: int = 0) -> int:
        """The last stable offset."""
        return self.end_offset(topic, partition, isolation=1)

    def end_offset(self, topic: str, partition: int = 0, *, isolation: int = 0) -> int:
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
        return int(self.connection.ask(request, 5).topics[0].partitions[0].offset)

    def listed(self, **filters: Any) -> Any:
        request = ListTransactionsRequest(**filters)
        version = 2 if "transactional_id_pattern" in filters else 1 if "duration_filter" in filters else 0
        response = self.connection.ask(request, version)
        if response.error_code:
            return name_of(response.error_code)
        mine = [t.transaction_state for t in response.transaction_states if t.transactional_id == self.transactional_id]
        return (mine, sorted(response.unknown_state_filters))
