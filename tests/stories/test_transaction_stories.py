"""Transactions end to end: the production broker in a simulated world, a producer of raw requests, and what readers,
groups and operators see of it. Spec: E3, E5, E6, E7, E8, E9, E11, R3, R4."""

import asyncio

import pytest

from ottla.errors import ErrorCode, KafkaError
from tests.support.processes.copier import settle
from tests.support.wire.transactional import NEW, OLD, Protocol
from tests.support.worlds.transaction_stage import Stage, refused, run_story

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])


# --- what readers see. Spec: E8. ---


@PROTOCOLS
def test_an_open_transaction_blocks_read_committed_readers(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await stage.write(b"before")
        await producer.send("t", 0, [b"open"])
        await stage.write(b"after")
        assert await stage.values() == [b"before"]
        assert await stage.values(committed=False) == [b"before", b"open", b"after"]
        part = await stage.client.fetch("t", 0, 0, isolation=1)
        assert (part.last_stable_offset, part.high_watermark, part.aborted_transactions) == (1, 3, [])
        part = await stage.client.fetch("t", 0, 0, isolation=0)
        assert (part.high_watermark, part.aborted_transactions) == (3, None)
        assert not (await stage.client.fetch("t", 0, 1, isolation=1)).records
        await producer.commit()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"before", b"open", b"after"]

    run_story(story)


@PROTOCOLS
def test_every_fetch_lists_the_aborted_transactions_in_its_range(protocol: Protocol) -> None:
    """Spec: R4. `read_committed` right after an abort; fetch offset inside the transaction."""

    async def story(stage: Stage) -> None:
        one, two = await stage.producer(protocol, "one"), await stage.producer(protocol, "two")
        await one.send("t", 0, [b"no 1", b"no 2"])  # 0, 1
        await two.send("t", 0, [b"yes"])  # 2
        await one.send("t", 0, [b"no 3"])  # 3
        await one.abort()  # 4
        await two.commit()  # 5
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"yes"]
        for offset in range(5):
            part = await stage.client.fetch("t", 0, offset, isolation=1)
            assert [(a.producer_id, a.first_offset) for a in part.aborted_transactions] == [(one.producer_id, 0)]
        part = await stage.client.fetch("t", 0, 5, isolation=1)
        assert part.aborted_transactions == []

    run_story(story)


def test_a_reader_advances_past_a_control_record_at_the_end() -> None:
    """Spec: R4. A consumer whose last offset is a control record."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer()
        await producer.send("t", 0, [b"v"])
        await producer.commit()
        await settle(stage.client, "t", 0)
        assert await stage.client.end_offset("t", 0, isolation=1) == 2
        found, following = await stage.client.read("t", 0)
        assert (found, following) == ([(0, b"v")], 2)

    run_story(story)


def test_the_first_of_many_open_transactions_blocks_them_all() -> None:
    async def story(stage: Stage) -> None:
        producers = [await stage.producer(NEW, f"p{i}") for i in range(5)]
        for i, producer in enumerate(producers):
            await producer.send("t", 0, [b"%d" % i])
        for i in (3, 1, 4):
            await producers[i].commit()
            await stage.until_state("CompleteCommit", f"p{i}")
            assert await stage.client.end_offset("t", 0, isolation=1) == 0
        await producers[0].abort()
        await stage.until_state("CompleteAbort", "p0")
        assert await stage.client.end_offset("t", 0, isolation=1) == 2
        assert await stage.values() == [b"1"]
        await producers[2].commit()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"1", b"2", b"3", b"4"]

    run_story(story)


# --- the split transaction. Spec: R3. ---


async def a_commit_arrives_late(stage: Stage, protocol: Protocol) -> list[bytes]:
    """The network delays a commit until its retry succeeded and the next transaction has started."""
    producer = await stage.producer(protocol)
    await producer.send("t", 0, [b"first"])
    held_back = producer.end_request(commit=True)
    await producer.commit()
    await stage.until_state("CompleteCommit")
    await producer.send("t", 0, [b"second, to be aborted"])
    await stage.client.ask_once(held_back, protocol.end)
    await asyncio.sleep(1)
    try:
        await producer.send("t", 1, [b"second, other half"])
        await producer.abort()
    except KafkaError:
        pass  # it may notice that its transaction was ended, but too late
    await asyncio.sleep(1)
    return await stage.values()


def test_with_the_old_protocol_a_late_commit_splits_the_next_transaction() -> None:
    """Spec: R3. Without KIP-890 the anomaly shows, so the test below can detect it."""

    async def story(stage: Stage) -> None:
        assert await a_commit_arrives_late(stage, OLD) == [b"first", b"second, to be aborted"]

    run_story(story)


def test_with_an_epoch_per_transaction_a_late_commit_does_nothing() -> None:
    """Spec: R3. KIP-890."""

    async def story(stage: Stage) -> None:
        assert await a_commit_arrives_late(stage, NEW) == [b"first"]
        await settle(stage.client, "t", 0)

    run_story(story)


def test_a_late_batch_cannot_join_the_next_transaction() -> None:
    """KIP-890: with the new protocol its epoch is stale."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(NEW)
        late = producer.produce_request("t", 1, [b"late"], 0)
        await producer.send("t", 0, [b"v"])
        await producer.commit()
        await stage.until_state("CompleteCommit")
        await producer.send("t", 1, [b"next"])
        answer = await stage.client.ask_once(late, 12)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        await producer.commit()
        await settle(stage.client, "t", 1)
        assert await stage.values(partition=1) == [b"next"]

    run_story(story)


def test_a_late_batch_of_the_old_protocol_fails_verification() -> None:
    """KIP-890 part 1: batches outside an open transaction are refused, so no transaction can hang."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(OLD)
        await producer.send("t", 0, [b"v"])
        late = producer.produce_request("t", 0, [b"late"], 1)
        await producer.commit()
        await stage.until_state("CompleteCommit")
        for version, code in ((11, ErrorCode.TRANSACTION_ABORTABLE), (10, ErrorCode.INVALID_TXN_STATE)):
            answer = await stage.client.ask_once(late, version)
            assert answer.responses[0].partition_responses[0].error_code == code
        await settle(stage.client, "t", 0)

    run_story(story)


def test_partitions_refuse_a_fenced_producer_without_asking_the_coordinator() -> None:
    """Spec: E3. The marker carries the fencing epoch."""

    async def story(stage: Stage) -> None:
        zombie = await stage.producer(OLD)
        await zombie.send("t", 0, [b"left open"])
        successor = await stage.producer(OLD)
        assert await refused(zombie.send("t", 0, [b"zombie"])) is ErrorCode.INVALID_PRODUCER_EPOCH
        await successor.send("t", 0, [b"v"])
        await successor.commit()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"v"]

    run_story(story, transaction_partition_verification_enable="false")


# --- crashes ---


@PROTOCOLS
def test_a_partition_recovers_its_transaction_state_after_a_crash(protocol: Protocol) -> None:
    """Open, aborted and decided transactions, epochs and sequences: rebuilt exactly."""

    async def story(stage: Stage) -> None:
        one, two, three = [await stage.producer(protocol, name) for name in ("one", "two", "three")]
        for _ in range(3):
            await one.send("t", 0, [b"a", b"b"])
            await two.send("t", 0, [b"c"])
            await one.abort()
            await two.commit()
        await three.send("t", 0, [b"open"])
        await one.send("t", 0, [b"open too"])
        for name, state in (("two", "CompleteCommit"), ("three", "Ongoing")):
            await stage.until_state(state, name)
        before = stage.seen()
        assert before[1] is not None
        assert len(before[3]) == 3
        for _ in range(2):
            await stage.kill()
            assert stage.seen() == before
        await stage.world.stop_broker()
        await stage.world.start_broker()
        after = stage.seen()
        assert after[1:] == before[1:]
        for was, entry in zip(before[0], after[0], strict=True):
            # A snapshot, Kafka's as ours, keeps no timestamp of a batch that a marker came after.
            assert entry[:-1] == was[:-1]
            assert [batch[:-1] for batch in entry[-1]] == [batch[:-1] for batch in was[-1]]
        await three.commit()
        await one.abort()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"c", b"c", b"c", b"open"]

    run_story(story)


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False])
def test_the_transaction_of_a_dead_producer_is_aborted_after_its_timeout(protocol: Protocol, commit: bool) -> None:
    """Spec: E3. Also when the broker dies meanwhile: the timeout continues."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol, timeout_ms=60_000)
        await producer.send("t", 0, [b"lost"])
        await producer.send_offsets("g", {("t", 0): 5})
        await asyncio.sleep(40)
        await stage.kill()
        await asyncio.sleep(15)
        assert await stage.state() == "Ongoing"
        await asyncio.sleep(20)
        await stage.until_state("CompleteAbort")
        assert await stage.values() == []
        assert await stage.client.committed_offset("g", "t", 0) == -1
        assert await refused(producer.send("t", 0, [b"zombie"])) is ErrorCode.INVALID_PRODUCER_EPOCH
        if commit:
            expected = ErrorCode.INVALID_TXN_STATE if protocol is NEW else ErrorCode.PRODUCER_FENCED
            assert await refused(producer.commit()) is expected
        elif protocol is NEW:
            await producer.abort()
            await producer.send("t", 0, [b"goes on"])
            await producer.commit()
            await settle(stage.client, "t", 0)
            assert await stage.values() == [b"goes on"]
        else:
            assert await refused(producer.abort()) is ErrorCode.PRODUCER_FENCED

    run_story(story)


@PROTOCOLS
@pytest.mark.parametrize("write", range(1, 7))
def test_a_transient_disk_failure_only_delays_the_end_of_a_transaction(protocol: Protocol, write: int) -> None:
    """Decision, marker, pending offsets and completion may each fail a few times."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 0, [b"v"])
        await producer.send("t", 1, [b"w"])
        await producer.send_offsets("g", {("t", 0): 7})
        # The first `write - 1` appends succeed, the next two fail.
        stage.world.platter.failures["append"] = _FailuresAfter(write - 1, times=2)
        await producer.commit()
        await settle(stage.client, "t", 0)
        await settle(stage.client, "t", 1)
        assert (await stage.values(), await stage.values(partition=1)) == ([b"v"], [b"w"])
        assert await stage.client.committed_offset("g", "t", 0) == 7
        await stage.until_state("CompleteCommit")

    run_story(story)


class _FailuresAfter(list[int]):
    """Failures that start after some successful calls."""

    def __init__(self, passes: int, times: int) -> None:
        super().__init__([5] * times)
        self.passes = passes

    def __bool__(self) -> bool:
        if self.passes > 0:
            self.passes -= 1
            return False
        return len(self) > 0
