"""The checker finds every kind of anomaly in histories written by hand, and none in a clean one. Spec: R2."""

from dataclasses import replace

import pytest

from ottla.verify.anomalies import Anomaly, Kind
from ottla.verify.checks.checker import check, why_inconclusive
from ottla.verify.history import (
    ASSIGNED,
    COMMIT,
    COPY,
    FAIL,
    FETCH_OFFSETS,
    OK,
    POLL,
    SEND,
    UNCOMMITTED,
    UNKNOWN,
    Fault,
    History,
    Operation,
    Read,
    Sent,
)
from tests.support.histories import final_read

A, B = "t-0", "t-1"


def sends(client: str, partition: str, value: int, outcome: str = OK, offset: int = -1, session: int = 0) -> Operation:
    return Operation(client, SEND, sent=[Sent(partition, value, offset)], outcome=outcome, session=session)


def transaction(
    client: str, sent: list[tuple[str, int]], polled: list[tuple[str, int, int]] | None = None, outcome: str = OK
) -> Operation:
    received = [Read(*each) for each in polled or ()]
    return Operation(client, sent=[Sent(*each) for each in sent], polled=received, outcome=outcome)


def polls(
    client: str, *records: tuple[str, int, int], session: int = 0, isolation: str = "read_committed"
) -> Operation:
    received = [Read(*each) for each in records]
    return Operation(client, POLL, polled=received, outcome=OK, session=session, isolation=isolation)


def found(*operations: Operation, **final: list[tuple[int, int]]) -> list[Anomaly]:
    """Checks operations; `a` and `b` are what is in the two partitions at the end."""
    contents = {{"a": A, "b": B}[name]: records for name, records in final.items()}
    return check(History([*operations, final_read(contents)]))


def only(anomalies: list[Anomaly]) -> Anomaly:
    assert len(anomalies) == 1, [str(each) for each in anomalies]
    return anomalies[0]


def test_a_clean_history_has_no_anomalies() -> None:
    history = [
        transaction("w0", [(A, 1), (B, 2), (A, 3)]),
        transaction("w1", [(A, 4)], [(A, 0, 1), (A, 1, 3), (B, 0, 2)], FAIL),
        transaction("w1", [(B, 5)], outcome=UNKNOWN),
        transaction("w2", [(B, 6), (A, 7)], outcome=UNKNOWN),
        sends("s", B, 8, UNKNOWN),
    ]
    assert found(*history, a=[(0, 1), (1, 3), (5, 7)], b=[(0, 2), (3, 6)]) == []


def test_an_acknowledged_record_that_is_not_there_is_lost() -> None:
    anomaly = only(found(sends("s", A, 1, offset=0), sends("s", A, 2, offset=1), a=[(1, 2)]))
    assert anomaly.kind is Kind.LOST_WRITE
    assert [(each.operation, each.note) for each in anomaly.evidence] == [
        (0, "sent 1 to t-0: acknowledged at offset 0"),
        (2, "read 2 at t-0@1, and 1 nowhere"),
    ]


def test_evidence_of_a_loss_names_a_consumer_that_had_received_the_record() -> None:
    anomalies = found(sends("s", A, 1, offset=0), polls("c", (A, 0, 1)), sends("s", A, 2, offset=1), a=[(1, 2)])
    lost = next(each for each in anomalies if each.kind is Kind.LOST_WRITE)
    assert (1, "read 1 at t-0@0") in [(each.operation, each.note) for each in lost.evidence]


def test_a_record_beyond_the_end_of_the_log_is_unseen() -> None:
    anomaly = only(found(sends("s", A, 1, offset=0), sends("s", A, 2, offset=1), a=[(0, 1)]))
    assert anomaly.kind is Kind.UNSEEN
    assert anomaly.evidence[-1].note == "read t-0, which ends at offset 1"


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    anomaly = only(found(sends("s", A, 1), a=[(0, 1), (2, 1)]))
    assert anomaly.kind is Kind.DUPLICATE
    assert [each.note for each in anomaly.evidence] == ["sent 1 once, to t-0", "read 1 at t-0@0", "read 1 at t-0@2"]


def test_a_read_of_an_aborted_transaction_is_an_aborted_read() -> None:
    anomaly = only(found(transaction("w", [(A, 1)], outcome=FAIL), polls("c", (A, 0, 1)), a=[]))
    assert anomaly.kind is Kind.ABORTED_READ
    assert [each.operation for each in anomaly.evidence] == [0, 1]


def test_read_uncommitted_consumers_may_receive_aborted_records() -> None:
    dirty = polls("c", (A, 0, 1), isolation=UNCOMMITTED)
    assert found(transaction("w", [(A, 1)], outcome=FAIL), dirty, a=[]) == []


def test_a_failed_send_must_not_be_there_for_anybody() -> None:
    anomaly = only(found(sends("s", A, 1, FAIL), polls("c", (A, 0, 1), isolation=UNCOMMITTED), a=[]))
    assert anomaly.kind is Kind.ABORTED_READ


@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_a_transaction_of_which_a_part_is_missing_is_torn(outcome: str) -> None:
    anomaly = only(found(transaction("w", [(A, 1), (B, 2)], outcome=outcome), a=[(0, 1)], b=[]))
    assert anomaly.kind is Kind.TORN
    assert ("acknowledged" in anomaly.message) == (outcome == OK)


def test_a_record_that_is_read_before_its_commit_was_requested_is_an_intermediate_read() -> None:
    written = replace(transaction("w", [(A, 1)]), started_us=0, end_started_us=50, ended_us=60)
    early, late = (replace(polls(f"c{at}", (A, 0, 1)), started_us=40, ended_us=at) for at in (49, 51))
    assert only(found(written, early, a=[(0, 1)])).kind is Kind.UNCOMMITTED_READ
    assert found(written, late, a=[(0, 1)]) == []


def test_a_transaction_that_receives_its_own_record_is_found() -> None:
    assert only(found(transaction("w", [(A, 1)], [(A, 0, 1)]), a=[(0, 1)])).kind is Kind.OWN_READ


def test_two_values_at_one_offset_are_inconsistent() -> None:
    anomaly = only(found(polls("c", (A, 0, 9)), a=[(0, 1)]))
    assert anomaly.kind is Kind.INCONSISTENT_OFFSET
    assert anomaly.message == "t-0@0 held 9 and 1"


def test_a_record_that_is_not_where_it_was_acknowledged_is_inconsistent() -> None:
    anomaly = only(found(sends("s", A, 1, offset=5), a=[(7, 1)]))
    assert anomaly.kind is Kind.INCONSISTENT_OFFSET
    assert anomaly.message == "1 was acknowledged at t-0@5 and is at t-0@7"


def test_an_offset_that_was_acknowledged_for_another_record_is_inconsistent() -> None:
    kinds = {each.kind for each in found(sends("s", A, 1, offset=0), a=[(0, 2), (1, 3)])}
    assert Kind.INCONSISTENT_OFFSET in kinds


def test_a_record_in_another_partition_is_astray() -> None:
    assert only(found(sends("s", A, 1), a=[], b=[(0, 1)])).kind is Kind.WRONG_PARTITION


def test_records_of_one_producer_keep_their_order() -> None:
    swapped = [sends("s", A, 1), sends("s", A, 2)]
    assert only(found(*swapped, a=[(0, 2), (1, 1)])).kind is Kind.REORDERED


def test_order_is_not_promised_across_two_instances_of_a_producer() -> None:
    assert found(sends("s", A, 1), sends("s", A, 2, session=1), a=[(0, 2), (1, 1)]) == []


def test_a_consumer_that_receives_an_offset_again_steps_back() -> None:
    anomaly = only(found(polls("c", (A, 0, 1), (A, 1, 2)), polls("c", (A, 1, 2)), a=[(0, 1), (1, 2)]))
    assert anomaly.kind is Kind.STEP_BACK
    assert [each.operation for each in anomaly.evidence] == [0, 1]


def test_a_new_session_may_read_from_the_beginning() -> None:
    assert found(polls("c", (A, 0, 1)), polls("c", (A, 0, 1), session=1), a=[(0, 1)]) == []


def test_a_consumer_that_leaves_out_a_record_skips_it() -> None:
    anomaly = only(found(polls("c", (A, 0, 1), (A, 4, 3)), a=[(0, 1), (2, 2), (4, 3)]))
    assert anomaly.kind is Kind.SKIP
    assert [each.note for each in anomaly.evidence] == ["received t-0@0", "received 3 at t-0@4 next", "read 2 at t-0@2"]


def test_a_consumer_that_starts_at_the_beginning_must_not_miss_the_first_record() -> None:
    late = polls("c", (A, 2, 2))
    assert only(found(late, a=[(0, 1), (2, 2)])).kind is Kind.SKIP
    assert found(replace(late, from_start=False), a=[(0, 1), (2, 2)]) == []


def test_offsets_of_markers_and_aborted_records_are_no_gaps() -> None:
    assert found(polls("c", (A, 0, 1), (A, 7, 2)), a=[(0, 1), (7, 2)]) == []


def test_information_that_flows_in_a_circle_is_found_with_the_shortest_circle() -> None:
    history = [
        transaction("w0", [(A, 1)], [(B, 0, 2)]),
        transaction("w1", [(B, 2)], [(A, 0, 1)]),
        transaction("w2", [(B, 3)], [(A, 0, 1)]),
    ]
    anomaly = only(found(*history, a=[(0, 1)], b=[(0, 2), (1, 3)]))
    assert anomaly.kind is Kind.CYCLE
    assert sorted(each.operation for each in anomaly.evidence) == [0, 1]


def test_a_circle_of_three_is_found_behind_a_long_chain() -> None:
    chain = [transaction(f"c{n}", [(A, 100 + n)], [(A, n - 1, 99 + n)] if n else []) for n in range(50)]
    circle = [
        transaction("x", [(B, 1)], [(B, 2, 3), (A, 49, 149)]),
        transaction("y", [(B, 2)], [(B, 0, 1)]),
        transaction("z", [(B, 3)], [(B, 1, 2)]),
    ]
    anomalies = found(*chain, *circle, a=[(n, 100 + n) for n in range(50)], b=[(0, 1), (1, 2), (2, 3)])
    (cycle,) = [each for each in anomalies if each.kind is Kind.CYCLE]
    assert sorted(each.operation for each in cycle.evidence) == [50, 51, 52]


def test_circles_of_writes_are_allowed() -> None:
    """G0: the records of two transactions may interleave differently in two partitions."""
    history = [transaction("w0", [(A, 1), (B, 2)]), transaction("w1", [(A, 3), (B, 4)])]
    assert found(*history, a=[(0, 1), (1, 3)], b=[(0, 4), (1, 2)]) == []


# --- copies -----------------------------------------------------------------------------------------------


def copies(client: str, pairs: dict[int, int], end: int, outcome: str = OK) -> Operation:
    return Operation(
        client,
        COPY,
        sent=[Sent(B, copy) for copy in pairs],
        outcome=outcome,
        group="copiers",
        offsets={A: end},
        copies=pairs,
    )


def test_a_record_that_is_copied_twice_is_found() -> None:
    history = [sends("s", A, 1), copies("k0", {11: 1}, 1), copies("k1", {12: 1}, 1, UNKNOWN)]
    assert only(found(*history, a=[(0, 1)], b=[(0, 11), (2, 12)])).kind is Kind.COPY_TWICE


def test_a_second_attempt_after_an_abort_is_not_a_second_copy() -> None:
    history = [sends("s", A, 1), copies("k0", {11: 1}, 1, FAIL), copies("k0", {12: 1}, 1)]
    assert found(*history, a=[(0, 1)], b=[(2, 12)]) == []


def test_a_record_below_the_committed_offset_without_a_copy_is_found() -> None:
    history = [sends("s", A, 1), sends("s", A, 2), copies("k", {12: 2}, 2)]
    assert only(found(*history, a=[(0, 1), (1, 2)], b=[(0, 12)])).kind is Kind.NOT_COPIED


def test_copies_in_another_order_are_found() -> None:
    history = [sends("s", A, 1), sends("s", A, 2), copies("k0", {12: 2}, 2), copies("k1", {11: 1}, 1)]
    assert only(found(*history, a=[(0, 1), (1, 2)], b=[(0, 12), (2, 11)])).kind is Kind.COPY_ORDER


# --- groups -----------------------------------------------------------------------------------------------


def assigned(client: str, generation: int, at: int, *partitions: str) -> Operation:
    offsets = dict.fromkeys(partitions, -1)
    return Operation(
        client, ASSIGNED, outcome=OK, group="g", generation=generation, started_us=at, ended_us=at, offsets=offsets
    )


def commits(client: str, generation: int, at: int, offset: int, outcome: str = OK) -> Operation:
    return Operation(
        client,
        COMMIT,
        outcome=outcome,
        group="g",
        generation=generation,
        started_us=at,
        ended_us=at + 1,
        offsets={A: offset},
    )


def test_one_partition_with_two_owners_in_one_generation_is_found() -> None:
    assert only(found(assigned("m0", 3, 0, A), assigned("m1", 3, 1, A, B))).kind is Kind.TWO_OWNERS
    assert found(assigned("m0", 3, 0, A), assigned("m1", 3, 1, B), assigned("m1", 4, 1, A, B)) == []


def test_a_commit_of_an_old_generation_must_be_refused() -> None:
    history = [assigned("m0", 3, 0, A), assigned("m1", 4, 10, A)]
    zombie = commits("m0", 3, 20, 5)
    assert only(found(*history, zombie)).kind is Kind.ZOMBIE_COMMIT
    assert found(*history, replace(zombie, outcome=UNKNOWN)) == []
    assert found(*history, commits("m0", 3, 5, 5)) == []


def fetched(at: int, offset: int) -> Operation:
    return Operation("m1", FETCH_OFFSETS, outcome=OK, group="g", started_us=at, ended_us=at + 1, offsets={A: offset})


def test_a_committed_offset_must_not_step_back() -> None:
    anomaly = only(found(commits("m0", 3, 0, 5), fetched(10, 2)))
    assert anomaly.kind is Kind.OFFSET_BACK
    assert anomaly.message == "g had committed t-0@5; later the committed offset is 2"
    assert found(commits("m0", 3, 0, 5), fetched(10, 5)) == []
    assert found(commits("m0", 3, 0, 2), commits("m0", 3, 10, 5), fetched(5, 2)) == []


def test_a_committed_offset_must_not_vanish() -> None:
    assert only(found(commits("m0", 3, 0, 5), fetched(10, -1))).message.endswith("the committed offset is none")


def test_the_offset_of_an_aborted_transaction_must_not_be_visible() -> None:
    aborted = replace(transaction("w", [], outcome=FAIL), group="g", offsets={A: 7}, ended_us=3)
    assert only(found(aborted, fetched(10, 7))).kind is Kind.ABORTED_READ
    assert found(aborted, replace(aborted, outcome=OK), fetched(10, 7)) == []


def test_a_commit_whose_outcome_is_unknown_may_arrive_late() -> None:
    assert found(commits("m0", 3, 0, 2, UNKNOWN), commits("m0", 3, 2, 5), fetched(10, 2)) == []


def test_a_record_that_a_group_has_passed_without_receiving_it_is_found() -> None:
    received = replace(polls("m0", (A, 1, 2)), group="g", from_start=False)
    history = [sends("s", A, 1), sends("s", A, 2), received, commits("m0", 3, 0, 2)]
    anomaly = only(found(*history, a=[(0, 1), (1, 2)]))
    assert anomaly.kind is Kind.NOT_PROCESSED
    assert anomaly.evidence[-1].note == "read 1 at t-0@0"


# --- progress ---------------------------------------------------------------------------------------------

SECOND = 1_000_000


def tries(start: int, end: int, outcome: str) -> Operation:
    started, ended = start * SECOND, end * SECOND if end >= 0 else -1
    return Operation("s", SEND, outcome=outcome, started_us=started, ended_us=ended)


def stuck(operations: list[Operation], *faults: Fault, patience_s: int = 10) -> list[Anomaly]:
    return check(History(operations, list(faults), {"patience_s": patience_s}))


def test_a_client_that_only_fails_for_a_long_calm_time_is_stuck() -> None:
    operations = [tries(0, 1, OK), *(tries(n, n + 1, UNKNOWN) for n in range(1, 12)), tries(12, 13, OK)]
    anomaly = only(stuck(operations))
    assert anomaly.kind is Kind.NO_PROGRESS
    assert anomaly.evidence[0].operation == 1
    assert stuck(operations, patience_s=13) == []


def test_an_operation_that_never_ends_is_stuck() -> None:
    other = replace(tries(20, 21, OK), client="other")
    assert only(stuck([tries(0, 1, OK), tries(2, -1, UNKNOWN), other])).kind is Kind.NO_PROGRESS


def test_nobody_has_to_make_progress_during_a_fault() -> None:
    operations = [tries(0, 1, OK), tries(2, 30, UNKNOWN), tries(30, 31, OK)]
    fault = Fault("kill", (0,), 3 * SECOND, 25 * SECOND)
    assert stuck(operations, fault) == []
    assert only(stuck(operations, replace(fault, ended_us=15 * SECOND))).kind is Kind.NO_PROGRESS


def test_an_idle_client_is_not_stuck() -> None:
    assert stuck([tries(0, 1, OK), tries(100, 101, OK)]) == []


def test_a_run_in_which_nothing_succeeded_proves_nothing() -> None:
    assert why_inconclusive(History([sends("s", A, 1, UNKNOWN), final_read({A: []})])) == "no write was acknowledged"
    assert why_inconclusive(History([sends("s", A, 1)])) == "the final read is missing"
    assert why_inconclusive(History([sends("s", A, 1), final_read({A: [(0, 1)]})])) == ""
