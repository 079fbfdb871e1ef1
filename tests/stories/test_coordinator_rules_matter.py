"""Mutation tests: one rule of coordinators in a cluster is disabled at a time, and a test fails. Spec: R7.

If no test fails without a rule, a test is missing. Each case runs the test first with the rule, then without it.
"""

import asyncio
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.broker import group_history
from ottla.broker.coordinators import Coordinators
from ottla.broker.group_history import GroupHistory
from ottla.broker.handler_support.transactions import transaction_requests
from ottla.broker.handlers import add_partitions_to_txn, find_coordinator, init_producer_id, produce
from ottla.coordinator import broker_requests, markers
from ottla.coordinator.broker_requests import AddPartitionsRequests
from ottla.coordinator.effects import Effects
from ottla.coordinator.hosted import HostedShard
from ottla.coordinator.loading import ShardLoader
from ottla.coordinator.markers import MarkerDelivery
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.errors import ErrorCode
from ottla.log.partition_log import PartitionLog
from ottla.log.producers.producer_state import ProducerStateManager
from tests.support import fresh_load
from tests.support.wire.transactional import OLD
from tests.support.worlds.coordinator_world import CoordinatorWorld
from tests.support.worlds.data_world import DataWorld

Patch = pytest.MonkeyPatch
UNIT = Path(__file__).parent.parent / "unit"
ACROSS, CLUSTER = "broker/handlers/test_transactions_across_brokers", "broker/test_coordinators_in_a_cluster"
MOVES, PRODUCE = "coordinator/test_coordinator_moves", "broker/handlers/test_produce"


class Rule(NamedTuple):
    """A rule, how to disable it, and the test that then fails."""

    name: str
    disable: Callable[[Patch], Any]
    module: str
    test: str
    arguments: dict[str, Any] = {}  # noqa: RUF012


def set_to(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, value)


def nothing(*_: Any, **__: Any) -> None:
    """Replaces a rule."""


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def believe(self: Coordinators, name: str, producer_id: int, epoch: int, partitions: Any, *, implicit: bool) -> Any:
    """Every partition is part of the transaction, without asking."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(dict.fromkeys(partitions, ErrorCode.NONE))
    return answer


def deliver_if_committed(
    self: CoordinatorRuntime[Any], hosted: HostedShard[Any], effects: Effects[Any], replica: Any, end: int
) -> None:
    """Events are dropped if the commit fails, whatever the reason."""

    def settled(codes: list[ErrorCode]) -> None:
        deliver, fail = self._deliver, self._fail
        deliver(effects) if codes[0] is ErrorCode.NONE else fail(effects, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    self._replicas.waits.when_committed([(replica, end)], 5_000, settled)


def without_epochs_of_guards(patch: Patch) -> None:
    append = PartitionLog.append

    def append_in_any_epoch(self: PartitionLog, batch: Any, *, leader_epoch: int, **options: Any) -> Any:
        guard = options.get("verification_guard")
        if guard is not None:
            options["verification_guard"] = guard._replace(leader_epoch=leader_epoch)
        return append(self, batch, leader_epoch=leader_epoch, **options)

    patch.setattr(PartitionLog, "append", append_in_any_epoch)


def without_epoch_of_coordinators(patch: Patch) -> None:
    check = ProducerStateManager.check_marker

    def check_marker(self: Any, producer_id: int, producer_epoch: int, coordinator_epoch: int, **options: Any) -> None:
        check(self, producer_id, producer_epoch, 10**9, **options)

    patch.setattr(ProducerStateManager, "check_marker", check_marker)


async def plain_id(services: Any) -> int:
    return int(await services.metadata.changes.allocate_producer_ids(1))


async def create_or_raise(name: str, services: Any) -> str:
    await services.metadata.changes.ensure_topics([services.settings.automatic_topic(services.image, name)])
    return ""


async def append_at_once(request: Any, context: Any, verdicts: Any, guards: Any) -> Any:
    return produce._append(request, context, verdicts, guards)  # noqa: SLF001


RULES = [
    Rule(
        "a batch waits for the end of the previous transaction",
        set_to(produce, "_append_when_ended", append_at_once),
        ACROSS,
        "test_the_first_batch_of_a_transaction_waits_for_the_markers_of_the_previous_one",
    ),
    Rule(
        "a partition's leader asks the coordinator on another broker",
        set_to(Coordinators, "ask_coordinator", believe),
        ACROSS,
        "test_the_coordinator_on_another_broker_must_know_the_partition",
    ),
    Rule(
        "questions about transactions are not passed on",
        set_to(add_partitions_to_txn, "check_partitions_here", transaction_requests.check_partitions),
        ACROSS,
        "test_only_the_coordinator_answers_for_a_transaction",
    ),
    Rule(
        "a verification ends before the producer gives up",
        set_to(AddPartitionsRequests, "timeout_ms", 60_000),
        ACROSS,
        "test_an_unreachable_coordinator_is_a_retriable_error",
        {"protocol": OLD},
    ),
    Rule(
        "what one turn asks of a broker is one request",
        set_to(broker_requests, "ITEMS_MAX", 1),
        ACROSS,
        "test_producers_that_ask_at_the_same_time_share_one_request",
    ),
    Rule(
        "markers are sent again",
        set_to(MarkerDelivery, "_retry_later", nothing),
        ACROSS,
        "test_markers_are_sent_again_until_the_partitions_broker_has_them",
        {"protocol": OLD},
    ),
    Rule(
        "markers of an earlier coordinator are rejected",
        without_epoch_of_coordinators,
        ACROSS,
        "test_the_marker_of_an_earlier_coordinator_is_rejected",
        {"protocol": OLD},
    ),
    Rule(
        "a fenced coordinator completes nothing",
        set_to(markers, "GIVEN_UP", (*markers.GIVEN_UP, ErrorCode.TRANSACTION_COORDINATOR_FENCED)),
        ACROSS,
        "test_a_coordinator_that_is_fenced_does_not_complete_the_transaction",
        {"protocol": OLD},
    ),
    Rule(
        "markers that wait for a leader are sent when there is one",
        set_to(MarkerDelivery, "apply", nothing),
        MOVES,
        "test_markers_that_wait_for_a_leader_are_written_as_soon_as_there_is_one",
    ),
    Rule(
        "the events of a decision survive a commit that fails for a while",
        set_to(CoordinatorRuntime, "_release_when_committed", deliver_if_committed),
        MOVES,
        "test_a_decision_is_carried_out_although_too_few_replicas_were_in_sync_for_a_while",
    ),
    Rule(
        "the events of a decision survive a new epoch of the same leader",
        set_to(CoordinatorRuntime, "_release_when_committed", deliver_if_committed),
        MOVES,
        "test_a_decision_is_carried_out_although_a_new_epoch_of_the_same_leader_began",
    ),
    Rule(
        "a partition that this broker does not lead is not coordinated here",
        set_to(CoordinatorRuntime, "_release", lambda self, hosted, effects: self._deliver(effects)),
        MOVES,
        "test_members_learn_at_once_that_the_coordinator_has_moved",
    ),
    Rule(
        "nothing is tried while too few replicas are in sync",
        set_to(CoordinatorRuntime, "_is_writable", always(True)),
        MOVES,
        "test_a_group_waits_while_too_few_replicas_are_in_sync",
    ),
    Rule(
        "shards that clients ask for are loaded first",
        set_to(ShardLoader, "want", nothing),
        "broker/handlers/test_many_groups",
        "test_a_shard_that_clients_ask_for_is_loaded_first",
    ),
    Rule(
        "a verification dies with the leader epoch",
        without_epochs_of_guards,
        PRODUCE,
        "test_a_verification_dies_with_the_leader_epoch",
    ),
    Rule(
        "a coordinator that does not know a new topic yet is asked again",
        set_to(transaction_requests, "_RETRY_LATER", ()),
        CLUSTER,
        "test_a_coordinator_that_does_not_know_a_new_topic_yet_is_a_retriable_error",
    ),
    Rule(
        "the rebalance history is written where its leader is",
        set_to(GroupHistory, "_leader", lambda self: self._replicas.broker_id),
        CLUSTER,
        "test_every_broker_writes_to_the_rebalance_history",
    ),
    Rule(
        "the rebalance history waits for its leader",
        set_to(group_history, "_RETRIED", ()),
        CLUSTER,
        "test_the_rebalance_history_waits_for_its_leader_and_no_group_waits_for_the_history",
    ),
    Rule(
        "only brokers write to the rebalance history",
        set_to(produce, "_may_write_internal", always(True)),
        CLUSTER,
        "test_only_brokers_write_to_the_rebalance_history",
    ),
    Rule(
        "clients look for a coordinator again while the metadata store is away",
        set_to(find_coordinator, "_create", create_or_raise),
        CLUSTER,
        "test_without_the_metadata_store_clients_are_told_to_retry",
    ),
    Rule(
        "clients ask for a producer id again while the metadata store is away",
        set_to(init_producer_id, "new_producer_id", plain_id),
        CLUSTER,
        "test_without_the_metadata_store_clients_are_told_to_retry",
    ),
]


def load(module: str) -> Any:
    spec = importlib.util.spec_from_file_location(module.rpartition("/")[2], UNIT / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def run(rule: Rule, directory: Path, caplog: Any) -> None:
    """Calls a test of another file with the fixtures it requests."""
    module = load(rule.module)
    test = getattr(module, rule.test)
    wanted = inspect.signature(test).parameters
    directory.mkdir()
    world: DataWorld | None = None
    with pytest.MonkeyPatch.context() as patch:
        fixtures: dict[str, Any] = {"tmp_path": directory, "monkeypatch": patch, "caplog": caplog}
        if "world" in wanted:
            world = module.coordinators_of_two(str(directory)) if rule.module == MOVES else DataWorld(str(directory))
            fixtures["world"] = world
        try:
            test(**{name: value for name, value in fixtures.items() if name in wanted}, **rule.arguments)
        finally:
            if world is not None:
                if isinstance(world, CoordinatorWorld):
                    world.stop()
                world.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_test_fails_when_a_rule_is_disabled(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(rule, tmp_path / "whole", caplog)
    caplog.clear()
    rule.disable(monkeypatch)
    # Any failure counts.
    with fresh_load.unwatched(), pytest.raises(Exception):  # noqa: B017, PT011
        run(rule, tmp_path / "broken", caplog)
