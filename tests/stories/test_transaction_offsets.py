"""Offsets in transactions, cluster changes during open transactions, two-phase commit, and many concurrent
requests. Spec: E5, E9, E11."""

import asyncio
import struct

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.testing.world import BOOTSTRAP, PORT
from tests.support.processes.copier import settle
from tests.support.seeds import each_seed
from tests.support.wire.transactional import NEW, OLD, Protocol, RawClient
from tests.support.worlds.transaction_stage import Stage, refused, run_story

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])


async def commit_plainly(client: RawClient, group: str, offset: int) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    await client.ask(request, 8, lambda r: [p.error_code for t in r.topics for p in t.partitions])


# --- pending offsets. Spec: E5. ---


@PROTOCOLS
def test_offsets_are_pending_until_the_marker(protocol: Protocol) -> None:
    """Spec: R4. OffsetFetch with require_stable."""

    async def story(stage: Stage) -> None:
        client, producer = stage.client, await stage.producer(protocol)
        await producer.send_offsets("g", {("t", 0): 3})
        assert await client.committed_offset("g", "t", 0, stable=False) == -1
        asked = asyncio.ensure_future(RawClient(BOOTSTRAP).committed_offset("g", "t", 0))
        await asyncio.sleep(2)
        assert not asked.done(), "UNSTABLE_OFFSET_COMMIT is retried until the transaction ends"
        await producer.commit()
        assert await asked == 3
        await producer.send_offsets("g", {("t", 0): 9})
        assert await client.committed_offset("g", "t", 0, stable=False) == 3
        await producer.abort()
        assert await client.committed_offset("g", "t", 0) == 3

    run_story(story)


@PROTOCOLS
def test_pending_offsets_are_still_pending_after_a_crash(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        client, producer = stage.client, await stage.producer(protocol)
        await producer.send_offsets("g", {("t", 0): 3, ("t", 1): 4})
        await stage.kill()
        assert await client.committed_offset("g", "t", 0, stable=False) == -1
        asked = asyncio.ensure_future(RawClient(BOOTSTRAP).committed_offset("g", "t", 1))
        await asyncio.sleep(1)
        assert not asked.done()
        await producer.commit()
        assert await asked == 4
        await stage.kill()
        assert await client.committed_offset("g", "t", 0) == 3

    run_story(story)


@PROTOCOLS
def test_a_later_plain_commit_wins(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send_offsets("g", {("t", 0): 3})
        await commit_plainly(stage.client, "g", 100)
        await producer.commit()
        assert await stage.client.committed_offset("g", "t", 0) == 100
        await stage.kill()
        assert await stage.client.committed_offset("g", "t", 0) == 100

    run_story(story)


@PROTOCOLS
def test_a_member_of_an_older_generation_cannot_commit(protocol: Protocol) -> None:
    """Spec: E9. Zombies fenced by group generation (KIP-447)."""

    async def story(stage: Stage) -> None:
        client, producer = stage.client, await stage.producer(protocol)
        await client.find_coordinator("g", 0)
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        join.member_id = (await client.ask_once(join, 5)).member_id
        generation = (await client.ask(join, 5, lambda r: [r.error_code])).generation_id
        sync = SyncGroupRequest(group_id="g", generation_id=generation, member_id=join.member_id)
        await client.ask(sync, 3, lambda r: [r.error_code])
        offsets = {("t", 0): 1}
        member = {"generation": generation, "member_id": join.member_id}
        await producer.send_offsets("g", offsets, **member)
        await producer.commit()
        zombies = (
            (member | {"generation": generation - 1}, ErrorCode.ILLEGAL_GENERATION),
            (member | {"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        )
        for zombie, code in zombies:
            assert await refused(producer.send_offsets("g", offsets, **zombie)) is code
            await producer.abort()
        assert await client.committed_offset("g", "t", 0) == 1

    run_story(story)


def test_offsets_without_a_transaction_are_refused() -> None:
    """KIP-890: an offset in a group the transaction does not include would stay pending forever."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(OLD)
        await stage.client.find_coordinator("g", 0)
        request = producer.offsets_request("g", {("t", 0): 1})
        for version, code in ((3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)):
            answer = await stage.client.ask_once(request, version)
            assert answer.topics[0].partitions[0].error_code == code
        assert await stage.client.committed_offset("g", "t", 0) == -1

    run_story(story)


# --- the cluster changes during an open transaction ---


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_can_end_after_its_topic_is_deleted(protocol: Protocol, commit: bool) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.create_topic("gone")
        producer = await stage.producer(protocol)
        await producer.send("t", 0, [b"v"])
        await producer.send("gone", 0, [b"w"])
        names = [DeleteTopicsRequest.DeleteTopicState(name="gone")]
        await stage.client.ask(
            DeleteTopicsRequest(topics=names, timeout_ms=1_000), 6, lambda r: [t.error_code for t in r.responses]
        )
        await (producer.commit() if commit else producer.abort())
        await stage.until_state("CompleteCommit" if commit else "CompleteAbort")
        assert await stage.values() == ([b"v"] if commit else [])
        await producer.send("t", 0, [b"next"])
        await producer.commit()

    run_story(story)


def test_a_transaction_whose_records_were_deleted_can_still_end() -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer()
        await producer.send("t", 0, [b"deleted"])
        await producer.send("t", 0, [b"kept"])
        part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        await stage.client.ask(
            DeleteRecordsRequest(
                topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])], timeout_ms=1_000
            ),
            2,
            lambda r: [p.error_code for t in r.topics for p in t.partitions],
        )
        assert await stage.client.end_offset("t", 0, isolation=1) == 1
        await producer.commit()
        await settle(stage.client, "t", 0)
        found, _ = await stage.client.read("t", 0, 1)
        assert found == [(1, b"kept")]

    run_story(story)


def test_compaction_keeps_open_transactions_and_removes_aborted_ones() -> None:
    """Also after the broker was killed and has reloaded the log."""

    async def story(stage: Stage) -> None:
        configs = {
            "cleanup_policy": "compact",
            "segment_ms": "1000",
            "min_cleanable_dirty_ratio": "0.0",
            "delete_retention_ms": "1000",
        }
        await stage.client.create_topic("c", 1, **configs)
        done, lost, slow = [await stage.producer(NEW, name) for name in ("done", "lost", "slow")]
        await done.send("c", 0, [b"old", b"new"])
        await done.commit()
        await lost.send("c", 0, [b"aborted"])
        await lost.abort()
        await slow.send("c", 0, [b"open"])
        for _ in range(6):
            await asyncio.sleep(9)
            await done.send("c", 0, [b"later"])
            await done.commit()
            assert (await stage.values("c"))[-1:] != [b"aborted"]
        assert b"open" in await stage.values("c", committed=False), "the transaction is still undecided"
        assert b"aborted" not in await stage.values("c")
        await slow.commit()
        await settle(stage.client, "c", 0)
        await asyncio.sleep(60)
        before = await stage.values("c")
        assert before[-1] == b"later"
        assert b"aborted" not in before
        await stage.kill()
        assert await stage.values("c") == before
        assert b"aborted" not in await stage.values("c", committed=False), "compaction removed it"

    run_story(story, log_cleaner_backoff_ms="1000")


# --- two-phase commit (KIP-939) ---


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_survives_days_and_crashes_until_it_is_decided(commit: bool) -> None:
    """Any connection with the transactional id, the producer id and the epoch can decide."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(NEW, start=False)
        await stage.client.find_coordinator("x", 1)
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1, enable2_pc=True)
        answer = await stage.client.ask(request, 6, lambda r: [r.error_code])
        producer.use(answer.producer_id, answer.producer_epoch)
        await producer.send("t", 0, [b"v"])
        await producer.send_offsets("g", {("t", 1): 5})
        prepared = (producer.producer_id, producer.producer_epoch)
        producer.client.close()
        for _ in range(3):
            await asyncio.sleep(86_400)
            await stage.kill()
        assert await stage.state() == "Ongoing"
        assert await stage.values() == []
        # A new instance takes over and gets the prepared transaction. The old one is fenced.
        request.keep_prepared_txn = True
        taken = await stage.client.ask(request, 6, lambda r: [r.error_code])
        assert (taken.ongoing_txn_producer_id, taken.ongoing_txn_producer_epoch) == prepared
        assert await refused(producer.send("t", 1, [b"zombie"])) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await refused(producer.commit()) is ErrorCode.PRODUCER_FENCED
        decision = EndTxnRequest(
            transactional_id="x",
            producer_id=taken.producer_id,
            producer_epoch=taken.producer_epoch,
            committed=commit,
        )
        await stage.kill()
        await RawClient(BOOTSTRAP).ask(decision, 5, lambda r: [r.error_code])
        await settle(stage.client, "t", 0)
        assert await stage.values() == ([b"v"] if commit else [])
        assert await stage.client.committed_offset("g", "t", 1) == (5 if commit else -1)

    run_story(story, transaction_two_phase_commit_enable="true")


def test_two_phase_commit_is_disabled_by_default() -> None:
    async def story(stage: Stage) -> None:
        await stage.client.find_coordinator("x", 1)
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1, enable2_pc=True)
        answer = await stage.client.ask_once(request, 6)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    run_story(story)


# --- many requests at once ---


@PROTOCOLS
@each_seed(8)
@pytest.mark.parametrize("flush", ["false", "true"])
def test_pipelined_batches_stay_in_order(protocol: Protocol, seed: int, flush: str) -> None:
    """Five in-flight batches, some to partitions still being verified: none may overtake another."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        if protocol is OLD:
            await producer.add("t", 0)
            await producer.add("t", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        sequences = [0, 0]
        wanted: list[list[bytes]] = [[], []]
        sent = 0
        for _ in range(20):
            partition = stage.world.random.randrange(2)
            value = b"%d" % sent
            request = producer.produce_request("t", partition, [value], sequences[partition])
            sequences[partition] += 1
            wanted[partition].append(value)
            writer.write(encode_request(0, protocol.produce, sent, "pipelined", request))
            sent += 1
            if stage.world.random.random() < 0.4:
                await asyncio.sleep(stage.world.random.uniform(0, 0.004))
        for number in range(sent):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answered, response = decode_response(0, protocol.produce, await reader.readexactly(size))
            assert answered == number
            assert response.responses[0].partition_responses[0].error_code == 0, f"batch {number}"
        writer.close()
        producer.added.add("t")
        await producer.commit()
        for partition in (0, 1):
            await settle(stage.client, "t", partition)
            assert await stage.values(partition=partition) == wanted[partition]

    run_story(story, seed=seed, ottla_flush_before_ack=flush)


@each_seed(5)
def test_producers_competing_for_one_id_leave_only_whole_transactions(seed: int) -> None:
    """Each starts with the same id, writes to both partitions and commits. A fenced producer restarts."""

    async def story(stage: Stage) -> None:
        committed: list[bytes] = []

        async def fight(name: bytes) -> None:
            for attempt in range(60):
                producer = await stage.producer(NEW, start=False)
                value = b"%s %d" % (name, attempt)
                try:
                    await producer.start()
                    await producer.send("t", 0, [value])
                    await producer.send("t", 1, [value])
                    await producer.commit()
                except KafkaError:
                    await asyncio.sleep(stage.world.random.uniform(0, 0.1))
                    continue
                finally:
                    producer.client.close()
                committed.append(value)
                return

        await asyncio.gather(*(fight(name) for name in (b"ann", b"bob", b"cyd")))
        for partition in (0, 1):
            await settle(stage.client, "t", partition)
        first, second = await stage.values(), await stage.values(partition=1)
        assert first == second, "transactions are whole"
        assert sorted(first) == sorted(committed)
        assert len(committed) == 3

    run_story(story, seed=seed)
