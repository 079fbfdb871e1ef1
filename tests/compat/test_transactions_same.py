"""The same transactional requests to Ottla and to Apache Kafka: error codes, epochs and states are equal.

Each script runs on both brokers, and the outcomes are compared.
Spec: E2, E3, E4, E5, E6, E7, E8, E11, R4.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.waiting import stretched
from tests.support.wire.raw import RawConnection, Side
from tests.support.wire.raw_transactions import RawTransactions

pytestmark = pytest.mark.oracle

Same = Callable[[Callable[[Side], Any]], Any]


@pytest.fixture
def on_both(same: Same, fresh_name: Callable[[], str]) -> Iterator[Callable[[Callable[..., Any]], Any]]:
    """Runs a script about one transactional id on both brokers."""
    name = fresh_name()
    opened: list[RawConnection] = []

    def tell(story: Callable[[RawTransactions, str], Any]) -> Any:
        def script(side: Side) -> Any:
            connection = RawConnection(side.bootstrap)
            opened.append(connection)
            return story(RawTransactions(connection, name), side.topic)

        return same(script)

    yield tell
    for connection in opened:
        connection.close()


VERSIONS = pytest.mark.parametrize("version", [0, 1, 2, 3], ids="v{}".format)


def test_starting(on_both: Any) -> None:
    def story(t: RawTransactions, topic: str) -> Any:
        t.find_coordinator()
        outcome = [t.describe(), t.listed()]
        outcome += [t.start(version) for version in range(0, 5)]
        outcome += [t.describe(), t.listed()]
        outcome += [t.init(timeout_ms=ms) for ms in (0, -1, 900_001, 900_000)]
        outcome += [t.init(transactional_id="")]
        return outcome

    on_both(story)


def test_init_with_the_current_epoch(on_both: Any) -> None:
    """KIP-360: lost responses, zombies, unknown producers."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start()]
        first = (t.producer_id, t.producer_epoch)
        outcome += [t.init(expected=first), t.init(expected=first), t.init(expected=first)]
        outcome += [t.init(expected=(t.producer_id, 40)), t.init(expected=(t.producer_id + 10_000, 0))]
        outcome += [t.init(3, expected=(t.producer_id, 40)), t.init(4, expected=(t.producer_id, 40))]
        outcome += [t.init(), t.init(expected=first)]
        outcome += [t.init(expected=(t.producer_id, -1)), t.init(expected=(-1, 3))]
        return outcome

    on_both(story)


@VERSIONS
def test_adding_partitions(on_both: Any, version: int) -> None:
    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start()]
        outcome += [t.add({topic: [0, 1]}, version), t.describe()]
        outcome += [t.add({topic: [0]}, version)]
        outcome += [t.add({topic: [7]}, version), t.add({topic: [0, 7], "nowhere": [0]}, version)]
        for wrong in (t.producer_epoch - 1, t.producer_epoch + 1):
            outcome += [t.add({topic: [0]}, version, producer_epoch=wrong)]
        outcome += [t.add({topic: [0]}, version, producer_id=t.producer_id + 10_000)]
        outcome += [t.add({topic: [0]}, version, transactional_id="unknown")]
        outcome += [t.add({topic: [0]}, version, transactional_id="")]
        outcome += [t.describe()]
        return outcome

    on_both(story)


@VERSIONS
def test_adding_offsets(on_both: Any, version: int) -> None:
    def story(t: RawTransactions, topic: str) -> Any:
        t.find_coordinator("group", 0)
        outcome = [t.start(), t.add_offsets("group", version), t.describe()[0]]
        for wrong in (t.producer_epoch - 1, t.producer_epoch + 1):
            outcome += [t.add_offsets("group", version, producer_epoch=wrong)]
        outcome += [t.add_offsets("group", version, producer_id=t.producer_id + 10_000)]
        outcome += [t.add_offsets("group", version, transactional_id="unknown")]
        outcome += [t.add_offsets("group", version, transactional_id="")]
        return outcome

    on_both(story)


@pytest.mark.parametrize("version", [4, 5])
def test_requests_between_brokers(on_both: Any, version: int) -> None:
    """Verification and the implicit add of KIP-890."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start()]
        outcome += [t.add_from_broker({topic: [0]}, version)]
        outcome += [t.add({topic: [0]}), t.add_from_broker({topic: [0, 1]}, version)]
        outcome += [t.add_from_broker({topic: [0]}, version, producer_epoch=t.producer_epoch + 1)]
        outcome += [t.add_from_broker({topic: [0]}, version, producer_id=t.producer_id + 10_000)]
        outcome += [t.add_from_broker({topic: [0]}, version, transactional_id="unknown")]
        outcome += [t.add_from_broker({topic: [0]}, version, transactional_id="")]
        outcome += [t.add_from_broker({topic: [1]}, version, verify_only=False), t.describe()]
        outcome += [t.end(True), t.state(), t.add_from_broker({topic: [0]}, version)]
        return outcome

    on_both(story)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_before_v5(on_both: Any, version: int, commit: bool) -> None:
    """Spec: R4. EndTxn without a transaction, twice, contradictory, and of another producer."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start(), t.end(True, version), t.end(False, version)]
        outcome += [t.add({topic: [0, 1]})]
        for wrong in (t.producer_epoch - 1, t.producer_epoch + 1):
            outcome += [t.end(commit, version, producer_epoch=wrong)]
        outcome += [t.end(commit, version, producer_id=t.producer_id + 10_000)]
        outcome += [t.end(commit, version, transactional_id="unknown")]
        outcome += [t.end(commit, version, transactional_id="")]
        outcome += [t.end(commit, version), t.state(), t.end(commit, version), t.end(not commit, version)]
        outcome += [t.describe(), t.add({topic: [0]}), t.end(not commit, version), t.state()]
        return outcome

    on_both(story)


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_v5(on_both: Any, commit: bool) -> None:
    """EndTxn v5: epochs, repeated requests, empty transactions, zombies."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start(), t.end(True, 5), t.end(False, 5), t.state()]
        outcome += [t.produce(topic, b"a", version=12)]
        before = t.producer_epoch
        outcome += [t.end(commit, 5, producer_epoch=before + 1), t.end(commit, 5, producer_epoch=before - 1)]
        outcome += [t.end(commit, 5, producer_id=t.producer_id + 10_000)]
        outcome += [t.end(commit, 5, transactional_id="unknown"), t.end(commit, 5, transactional_id="")]
        outcome += [t.end(commit, 5), t.state()]
        outcome += [t.end(commit, 5, producer_epoch=before, keep=False)]
        outcome += [t.end(not commit, 5, producer_epoch=before, keep=False)]
        outcome += [t.end(True, 5), t.end(False, 5), t.state(), t.describe()]
        outcome += [t.end(commit, 5, producer_epoch=before, keep=False)]
        outcome += [t.init(expected=(t.producer_id, t.producer_epoch - 1)), t.init()]
        return outcome

    on_both(story)


@pytest.mark.parametrize("version", [3, 8, 9, 10, 11, 12])
def test_writing_without_a_transaction(on_both: Any, version: int) -> None:
    """Bad input: no transaction begun, partitions not added, stale epochs, no transactional id."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start()]
        if version < 12:
            outcome += [t.produce(topic, version=version)]
            outcome += [t.add({topic: [0]}), t.produce(topic, partition=1, version=version)]
        outcome += [t.produce(topic, version=version, transactional_id=None)]
        outcome += [t.produce(topic, version=version, transactional_id="unknown")]
        outcome += [t.produce(topic, version=version, producer_epoch=t.producer_epoch + 1)]
        outcome += [t.produce(topic, version=version, producer_id=t.producer_id + 10_000)]
        outcome += [t.produce(topic, version=version), t.produce(topic, version=version)]
        outcome += [t.produce(topic, version=version, sequence=5)]
        outcome += [t.produce(topic, version=version, sequence=1, transactional=False)]
        outcome += [t.produce(topic, version=version, sequence=1, producer_epoch=t.producer_epoch - 1)]
        outcome += [t.produce(topic, version=version, sequence=1), t.describe()]
        outcome += [t.end(True, 5 if version >= 12 else 3), t.state()]
        return outcome

    on_both(story)


@pytest.mark.parametrize("version", [9, 11, 12])
def test_writing_after_being_fenced(on_both: Any, version: int) -> None:
    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start()]
        if version < 12:
            outcome += [t.add({topic: [0]})]
        outcome += [t.produce(topic, version=version)]
        old = (t.producer_id, t.producer_epoch)
        ids: dict[str, Any] = {"producer_id": old[0], "producer_epoch": old[1]}
        outcome += [t.start(), t.state()]
        outcome += [t.produce(topic, version=version, sequence=1, **ids)]
        outcome += [t.produce(topic, version=version, partition=1, **ids)]
        outcome += [t.add({topic: [0]}, **ids), t.add_offsets("group", **ids)]
        outcome += [t.end(True, v, **ids, keep=False) for v in (1, 2, 3, 4, 5)]
        outcome += [t.end(False, v, **ids, keep=False) for v in (1, 2, 3, 4, 5)]
        outcome += [t.init(expected=old, keep=False)]
        if version < 12:
            outcome += [t.add({topic: [0]})]
        outcome += [t.produce(topic, b"new", version=version), t.end(True, 5 if version >= 12 else 3), t.state()]
        return outcome

    on_both(story)


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5])
def test_committing_offsets(on_both: Any, version: int) -> None:
    """TxnOffsetCommit: pending until the end (UNSTABLE_OFFSET_COMMIT), rejected without a transaction."""

    def story(t: RawTransactions, topic: str) -> Any:
        group = f"group of {topic}"
        t.find_coordinator(group, 0)

        def settled() -> Any:
            t.until(lambda: t.fetch_offset(group, topic, stable=True) == "UNSTABLE_OFFSET_COMMIT", False)
            return t.fetch_offset(group, topic, stable=True)

        outcome = [t.start()]
        outcome += [t.commit_offsets(group, topic, 9, version, transactional_id="unknown")]
        outcome += [t.commit_offsets(group, topic, 9, version, transactional_id="")]
        if version < 5:
            outcome += [t.commit_offsets(group, topic, 1, version)]
            outcome += [t.add_offsets(group)]
        outcome += [t.commit_offsets(group, topic, 3, version)]
        outcome += [t.fetch_offset(group, topic), t.fetch_offset(group, topic, stable=True)]
        outcome += [t.fetch_offset(group, topic, stable=True, partition=1)]
        for wrong in (t.producer_epoch - 1, t.producer_epoch + 1):
            outcome += [t.commit_offsets(group, topic, 9, version, producer_epoch=wrong)]
        outcome += [t.commit_offsets(group, topic, 9, version, producer_id=t.producer_id + 10_000)]
        outcome += [t.commit_offsets(group, "nowhere", 9, version)]
        outcome += [t.commit_offsets(group, topic, 9, version, metadata="m" * 5_000)]
        if version >= 3:
            member: dict[str, Any] = {"generation_id_or_member_epoch": 4, "member_id": "m"}
            outcome += [t.commit_offsets(group, topic, 9, version, **member)]
            outcome += [t.commit_offsets(group, topic, 9, version, member_id="m")]
        end_version = 5 if version >= 5 else 3
        outcome += [t.end(True, end_version), t.state()]
        outcome += [settled(), t.fetch_offset(group, topic)]
        if version < 5:
            outcome += [t.add_offsets(group)]
        outcome += [t.commit_offsets(group, topic, 8, version), t.end(False, end_version), t.state()]
        outcome += [settled(), t.fetch_offset(group, topic)]
        return outcome

    on_both(story)


def test_write_txn_markers(on_both: Any) -> None:
    """WriteTxnMarkers, as an operator's tool sends it to end a hanging transaction."""

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start(), t.add({topic: [0]}), t.produce(topic)]
        outcome += [t.write_markers(topic, partition=9), t.write_markers("nowhere")]
        outcome += [t.write_markers(topic), t.write_markers(topic)]
        outcome += [t.write_markers(topic, coordinator_epoch=7), t.write_markers(topic, coordinator_epoch=6)]
        outcome += [t.produce(topic, sequence=1)]
        return outcome

    on_both(story)


def test_a_transaction_that_takes_too_long(on_both: Any) -> None:
    """Spec: E3. Aborted by the coordinator, its producer fenced."""

    timeout_ms = stretched(3_000)

    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start(timeout_ms=timeout_ms), t.add({topic: [0]}), t.produce(topic)]
        outcome += [t.until(lambda: t.describe()[0], "CompleteAbort"), t.describe()]
        outcome += [t.produce(topic, sequence=1), t.produce(topic, sequence=1, version=12)]
        outcome += [t.add({topic: [0]}), t.add({topic: [0]}, 1)]
        outcome += [t.end(True, 3), t.end(False, 3), t.end(True, 1), t.end(True, 5), t.end(False, 5)]
        outcome += [t.produce(topic, version=12), t.end(True, 5), t.state()]
        return outcome

    on_both(story)


def test_listing(on_both: Any) -> None:
    def story(t: RawTransactions, topic: str) -> Any:
        outcome = [t.start(), t.listed(state_filters=["Empty"]), t.listed(duration_filter=0)]
        outcome += [t.listed(state_filters=["Ongoing", "Nonsense"]), t.listed(state_filters=["Nonsense"])]
        outcome += [t.add({topic: [0]}), t.listed(state_filters=["Ongoing"])]
        outcome += [t.listed(producer_id_filters=[t.producer_id]), t.listed(producer_id_filters=[t.producer_id + 5])]
        outcome += [t.listed(duration_filter=0), t.listed(duration_filter=10_000_000)]
        outcome += [t.end(True), t.state(), t.listed(), t.listed(duration_filter=0)]
        return outcome

    on_both(story)
