"""The admin's calls about transactions: list, describe, end, find what hangs. Mixed into AsyncAdmin and Admin."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.admin_arguments import as_names
from ottla.client.admin.open_transactions import OpenTransaction, find_open_transactions
from ottla.client.admin.transaction_model import (
    FencedProducer,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.core.model import Node, error_of
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import NO_RETRY, leaders_of
from ottla.client.core.polling import ANY_NODE
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.types import TopicPartition

TRANSACTION_KEY = 1
FENCING_TIMEOUT_MS = 1
"""Nobody will write under the epoch that a fence takes."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class AsyncTransactionAdmin:
    """The part of AsyncAdmin that is about transactions."""

    _network: Network

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Every transactional id of the cluster, by name; only those that pass the filters.

        >>> await admin.list_transactions(states=["Ongoing"], longer_than_ms=60_000)
        """
        wanted_states, wanted_ids = list(states), list(producer_ids)

        def request(version: int) -> ListTransactionsRequest:
            if (longer_than_ms is not None and version < 1) or (pattern is not None and version < 2):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker has no such filter for transactions")
            message = ListTransactionsRequest(state_filters=wanted_states, producer_id_filters=wanted_ids)
            if longer_than_ms is not None:
                message.duration_filter = longer_than_ms
            if pattern is not None:
                message.transactional_id_pattern = pattern
            return message

        async def of(node_id: int) -> list[TransactionListing]:
            async def attempt() -> list[TransactionListing]:
                response = await self._send_to(ApiKey.LIST_TRANSACTIONS, request, node_id)
                _check(response.error_code, f"listing the transactions of broker {node_id}")
                return [
                    TransactionListing(found.transactional_id, found.producer_id, found.transaction_state, node_id)
                    for found in response.transaction_states
                ]

            return await self._network.retrying(attempt, final=NO_RETRY)

        await self._network.until_connected()
        found = await asyncio.gather(*(of(node_id) for node_id in sorted(self._network.view.brokers)))
        # A coordinator that moves while we ask may have been seen on both sides.
        by_id = {listing.transactional_id: listing for listings in found for listing in listings}
        return [by_id[name] for name in sorted(by_id)]

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Transactions in the order asked; raises TRANSACTIONAL_ID_NOT_FOUND for a missing one."""
        transactional_ids = as_names(transactional_ids, "transactional ids")

        async def attempt(name: str) -> TransactionDescription:
            node = await self._transaction_coordinator(name)
            message = DescribeTransactionsRequest(transactional_ids=[name])
            response = await self._send_to(ApiKey.DESCRIBE_TRANSACTIONS, lambda version: message, node.node_id)
            (found,) = response.transaction_states
            _check(found.error_code, f"describing transaction {name}")
            return TransactionDescription(
                name,
                node.node_id,
                found.transaction_state,
                found.producer_id,
                found.producer_epoch,
                found.transaction_timeout_ms,
                found.transaction_start_time_ms,
                tuple(sorted(TopicPartition(t.topic, p) for t in found.topics for p in t.partitions)),
            )

        async def describe(name: str) -> TransactionDescription:
            return await self._network.retrying(lambda: attempt(name), final=NO_RETRY)

        return list(await asyncio.gather(*(describe(name) for name in transactional_ids)))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Who writes to each partition idempotently or in transactions, as its leader knows it."""
        wanted = list(partitions)

        async def attempt() -> dict[TopicPartition, list[ProducerState]]:
            leaders = await leaders_of(self._network, dict.fromkeys(wanted, 0))
            by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
            for partition in wanted:
                by_node[leaders[partition].node_id][partition.topic].append(partition.partition)
            found: dict[TopicPartition, list[ProducerState]] = {}
            for node_id, topics in by_node.items():
                found |= await self._producers_on(node_id, topics)
            return found

        return await self._network.retrying(attempt, final=NO_RETRY)

    async def _producers_on(
        self, node_id: int, topics: Mapping[str, list[int]]
    ) -> dict[TopicPartition, list[ProducerState]]:
        asked = [DescribeProducersRequest.TopicRequest(name=t, partition_indexes=p) for t, p in topics.items()]
        message = DescribeProducersRequest(topics=asked)
        response = await self._send_to(ApiKey.DESCRIBE_PRODUCERS, lambda version: message, node_id)
        found = {}
        for topic in response.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                _check(part.error_code, f"describing the producers of {partition}", part.error_message)
                found[partition] = [
                    ProducerState(
                        p.producer_id,
                        p.producer_epoch,
                        p.last_sequence,
                        p.last_timestamp,
                        p.coordinator_epoch,
                        p.current_txn_start_offset,
                    )
                    for p in part.active_producers
                ]
        return found

    async def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """Decides an open transaction from outside: who knows the ids and the epoch may (KIP-939).

        Its producer cannot go on in it. PRODUCER_FENCED and INVALID_TXN_STATE mean that it is another one by now, or
        decided already.
        """

        async def attempt() -> None:
            node = await self._transaction_coordinator(transactional_id)
            message = EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=commit,
            )
            response = await self._send_to(ApiKey.END_TXN, lambda version: message, node.node_id)
            doing = "committing" if commit else "aborting"
            _check(response.error_code, f"{doing} transaction {transactional_id}")

        await self._network.retrying(attempt, final=NO_RETRY)

    async def fence_producers(self, transactional_ids: Sequence[str]) -> dict[str, FencedProducer]:
        """Shuts out whoever writes under these ids now, and aborts what they have open.

        >>> await admin.fence_producers(["biller-1"])
        """
        transactional_ids = as_names(transactional_ids, "transactional ids")

        async def fence(name: str) -> FencedProducer:
            message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=FENCING_TIMEOUT_MS)

            async def attempt() -> FencedProducer:
                node = await self._transaction_coordinator(name)
                response = await self._send_to(ApiKey.INIT_PRODUCER_ID, lambda version: message, node.node_id)
                _check(response.error_code, f"fencing the producers of {name}")
                return FencedProducer(response.producer_id, response.producer_epoch)

            return await self._network.retrying(attempt, final=NO_RETRY)

        names = list(dict.fromkeys(transactional_ids))
        return dict(zip(names, await asyncio.gather(*map(fence, names)), strict=True))

    async def abort_in_partition(self, partition: TopicPartition, producer: ProducerState) -> None:
        """Ends a hanging transaction in one partition by an ABORT marker, past every coordinator.

        Never for a transaction that a coordinator still knows: its other partitions would stay open.
        """
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            coordinator_epoch=max(0, producer.coordinator_epoch),
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )
        message = WriteTxnMarkersRequest(markers=[marker])

        async def attempt() -> None:
            leaders = await leaders_of(self._network, {partition: 0})
            node_id = leaders[partition].node_id
            response = await self._send_to(ApiKey.WRITE_TXN_MARKERS, lambda version: message, node_id)
            _check(response.markers[0].topics[0].partitions[0].error_code, f"writing an abort marker to {partition}")

        await self._network.retrying(attempt, final=NO_RETRY)

    async def find_hanging_transactions(self, partitions: Iterable[TopicPartition]) -> list[HangingTransaction]:
        """Open transactions that no coordinator will ever end.

        Asked twice: a transaction that was just ending is not one of them.
        """
        wanted = list(partitions)
        first = await self._find_hanging(wanted)
        if not first:
            return []
        again = {(h.partition, h.producer.producer_id, h.producer.transaction_start_offset) for h in first}
        return [
            hanging
            for hanging in await self._find_hanging(sorted({h.partition for h in first}))
            if (hanging.partition, hanging.producer.producer_id, hanging.producer.transaction_start_offset) in again
        ]

    async def _find_hanging(self, partitions: list[TopicPartition]) -> list[HangingTransaction]:
        producers = await self.describe_producers(partitions)
        open_here = {
            p: [each for each in found if each.transaction_start_offset >= 0] for p, found in producers.items()
        }
        ids = sorted({each.producer_id for found in open_here.values() for each in found})
        if not ids:
            return []
        names = {
            listing.producer_id: listing.transactional_id for listing in await self.list_transactions(producer_ids=ids)
        }
        described = {t.transactional_id: t for t in await self.describe_transactions(sorted(set(names.values())))}
        hanging = []
        for partition, found in sorted(open_here.items()):
            for producer in found:
                name = names.get(producer.producer_id)
                reason = _why_hanging(partition, producer, None if name is None else described[name])
                if reason is not None:
                    hanging.append(HangingTransaction(partition, producer, name, reason))
        return hanging

    async def find_open_transactions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[OpenTransaction]]:
        """What holds back read_committed readers of each partition: its open transactions, the oldest first."""
        return await find_open_transactions(self, partitions)

    # --- asking -------------------------------------------------------------------------------------------

    async def _transaction_coordinator(self, transactional_id: str) -> Node:
        def request(version: int) -> FindCoordinatorRequest:
            if version >= 4:
                return FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=[transactional_id])
            return FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY)

        response = await self._send_to(ApiKey.FIND_COORDINATOR, request, ANY_NODE)
        answer = response.coordinators[0] if response.coordinators else response
        _check(answer.error_code, f"finding the coordinator of {transactional_id}", answer.error_message)
        return Node(answer.node_id, answer.host, answer.port)

    async def _send_to(self, api_key: int, request: Callable[[int], Any], node_id: int) -> Any:
        if node_id != ANY_NODE:
            await self._network.until_connected()
        return (await self._network.request(api_key, request, destination=node_id)).message


class TransactionAdmin:
    """The part of Admin that is about transactions: each call of AsyncTransactionAdmin, waited for."""

    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        return self._call(
            self._async.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        )

    def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        return self._call(self._async.describe_transactions(transactional_ids))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
        return self._call(self._async.describe_producers(partitions))

    def end_transaction(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        return self._call(self._async.end_transaction(transactional_id, producer_id, producer_epoch, commit=commit))

    def fence_producers(self, transactional_ids: Sequence[str]) -> dict[str, FencedProducer]:
        return self._call(self._async.fence_producers(transactional_ids))

    def abort_in_partition(self, partition: TopicPartition, producer: ProducerState) -> None:
        return self._call(self._async.abort_in_partition(partition, producer))

    def find_hanging_transactions(self, partitions: Iterable[TopicPartition]) -> list[HangingTransaction]:
        return self._call(self._async.find_hanging_transactions(partitions))

    def find_open_transactions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[OpenTransaction]]:
        return self._call(self._async.find_open_transactions(partitions))


def _why_hanging(
    partition: TopicPartition, producer: ProducerState, known: TransactionDescription | None
) -> str | None:
    """Why nobody will end the producer's open transaction in the partition; None if somebody will."""
    if known is None:
        return "no coordinator knows the producer"
    if known.state not in OPEN_STATES:
        return f"its coordinator has it as {known.state}"
    if partition not in known.partitions:
        return "its coordinator does not count the partition in"
    return None


def _check(error_code: int, doing: str, message: str | None = None) -> None:
    if error_code != ErrorCode.NONE:
        raise KafkaError(error_of(error_code), f"{doing}: {message}" if message else doing)
