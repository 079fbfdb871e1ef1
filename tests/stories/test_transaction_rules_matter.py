"""Mutation tests: one rule of transactions is disabled at a time, and a story fails. Spec: R7.

If no story fails without a rule, a story is missing. Each case runs the story first with the rule, then without it.
"""

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.handlers import txn_offset_commit
from ottla.coordinator.group.offset_requests import OffsetRequests
from ottla.coordinator.group.offsets import Offsets
from ottla.coordinator.markers import MarkerDelivery
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.transaction import ending
from ottla.coordinator.transaction.shard import SendMarkers, TransactionShard
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import PartitionLog
from ottla.log.producers.producer_state import ProducerEntry, ProducerStateManager
from ottla.testing.world import BOOTSTRAP, World
from tests.support import fresh_load
from tests.support.processes.copier import Copier, check, fill, one_copy
from tests.support.wire.transactional import NEW, OLD, RawClient

Patch = pytest.MonkeyPatch


def stories_of(name: str) -> Any:
    """Loads another test file of this directory."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stories = stories_of("test_transaction_stories")
offsets_stories = stories_of("test_transaction_offsets")
FAILURES = (AssertionError, KafkaError, RuntimeError)
SETTINGS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}


def copy_through_cuts(seeds: int = 12) -> None:
    """Copies while connections are cut, so the producer retries batches that may have arrived."""
    for seed in range(seeds):

        async def story(world: World) -> None:
            client = RawClient(BOOTSTRAP)
            await fill(client, 1, 12)
            copying = asyncio.ensure_future(Copier(world, OLD, 1, batch=2).run())
            while not copying.done():
                await asyncio.sleep(world.random.uniform(0, 0.03))
                if world.loop.time() < 3:
                    world.network.cut_all()
            await copying
            await check(client, 1, 12)

        World(seed, **SETTINGS).run(story)


def die_after_every_write(power_loss: bool = False) -> None:
    settings = SETTINGS | ({"ottla_flush_before_ack": "true"} if power_loss else {})

    def run(kill_after: int | None) -> int:
        async def story(world: World) -> int:
            return await one_copy(world, NEW, kill_after, power_loss)

        return int(World(0, **settings).run(story))

    for number in range(1, run(None) + 1):
        run(number)


# --- the rules, disabled ---


def without_last_stable_offset(patch: Patch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def without_aborted_index(patch: Patch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda log, start, end: [])


def without_epoch_check(patch: Patch) -> None:
    original = ProducerStateManager.check

    def check_no_epoch(self: ProducerStateManager, header: Any, **options: Any) -> Any:
        try:
            return original(self, header, **options)
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                return None
            raise

    patch.setattr(ProducerStateManager, "check", check_no_epoch)


def without_coordinator_epoch_check(patch: Patch) -> None:
    def check_no_epoch(known: Any, name: str, producer_id: int, producer_epoch: int) -> Any:
        if known is None or known.producer_id != producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return known

    patch.setattr(ending, "check_owner", check_no_epoch)


def without_sequence_check(patch: Patch) -> None:
    original = ProducerStateManager.check

    def check_no_sequence(self: ProducerStateManager, header: Any, **options: Any) -> Any:
        return original(self, header, **options | {"check_sequence": False})

    patch.setattr(ProducerStateManager, "check", check_no_sequence)
    patch.setattr(ProducerEntry, "find_duplicate", lambda *_: None)


def without_verification(patch: Patch) -> None:
    patch.setattr(
        TransactionShard,
        "verify",
        lambda shard, name, producer_id, epoch, partitions: dict.fromkeys(partitions, ErrorCode.NONE),
    )


def without_offset_verification(patch: Patch) -> None:
    async def believe(*_: Any) -> None:
        return None

    patch.setattr(txn_offset_commit, "_verify", believe)


def markers_before_the_decision(patch: Patch) -> None:
    original = CoordinatorRuntime._run  # noqa: SLF001 (this test breaks it)

    def run(self: Any, hosted: Any, effects: Any) -> Any:
        for event in effects.events:
            if isinstance(event, SendMarkers) and effects.records:
                delivery = self._on_event.__closure__[0].cell_contents
                assert isinstance(delivery, MarkerDelivery)
                for partition in sorted(event.partitions):
                    delivery._writer.write(  # noqa: SLF001
                        partition,
                        event.producer_id,
                        event.producer_epoch,
                        hosted.epoch,
                        commit=event.commit,
                        transaction_version=event.transaction_version,
                    )
        return original(self, hosted, effects)

    patch.setattr(CoordinatorRuntime, "_run", run)


def answers_before_the_decision_is_durable(patch: Patch) -> None:
    patch.setattr(CoordinatorRuntime, "_release", lambda self, hosted, effects: self._deliver(effects))


def without_resuming_markers_at_load(patch: Patch) -> None:
    original = TransactionShard.on_loaded

    def on_loaded(self: TransactionShard, now: int) -> Any:
        effects = original(self, now)
        effects.events.clear()
        return effects

    patch.setattr(TransactionShard, "on_loaded", on_loaded)


def without_pending_offsets(patch: Patch) -> None:
    original = Offsets.replay

    def replay(self: Offsets, offset: int, key: bytes, value: bytes | None, producer_id: int) -> str:
        return original(self, offset, key, value, -1)

    patch.setattr(Offsets, "replay", replay)


def without_generation_fencing(patch: Patch) -> None:
    patch.setattr(OffsetRequests, "_check_transactional_committer", lambda *_: None)


def without_epoch_bump(patch: Patch) -> None:
    patch.setattr(
        ending,
        "end_with_bump",
        lambda known, producer_id, epoch, commit, spare, now: ending.end(known, producer_id, epoch, commit, now),
    )


def without_retry_of_completion(patch: Patch) -> None:
    patch.setattr(MarkerDelivery, "_later", lambda *_: None)


def without_timeout(patch: Patch) -> None:
    from ottla.coordinator.transaction.transaction import Transaction

    patch.setattr(Transaction, "can_time_out", False)


CASES: list[tuple[Callable[[Patch], None], Callable[[], Any]]] = [
    (without_last_stable_offset, lambda: stories.test_an_open_transaction_blocks_read_committed_readers(NEW)),
    (without_aborted_index, lambda: stories.test_every_fetch_lists_the_aborted_transactions_in_its_range(NEW)),
    (
        without_epoch_check,
        lambda: stories.test_partitions_refuse_a_fenced_producer_without_asking_the_coordinator(),
    ),
    (
        without_coordinator_epoch_check,
        lambda: stories.test_with_an_epoch_per_transaction_a_late_commit_does_nothing(),
    ),
    (without_epoch_bump, lambda: stories.test_with_an_epoch_per_transaction_a_late_commit_does_nothing()),
    (without_sequence_check, copy_through_cuts),
    (without_verification, lambda: stories.test_a_late_batch_of_the_old_protocol_fails_verification()),
    (without_offset_verification, lambda: offsets_stories.test_offsets_without_a_transaction_are_refused()),
    (markers_before_the_decision, die_after_every_write),
    (answers_before_the_decision_is_durable, lambda: die_after_every_write(power_loss=True)),
    (without_resuming_markers_at_load, die_after_every_write),
    (without_pending_offsets, lambda: offsets_stories.test_offsets_are_pending_until_the_marker(NEW)),
    (without_generation_fencing, lambda: offsets_stories.test_a_member_of_an_older_generation_cannot_commit(NEW)),
    (
        without_retry_of_completion,
        lambda: [
            stories.test_a_transient_disk_failure_only_delays_the_end_of_a_transaction(NEW, write)
            for write in range(1, 7)
        ],
    ),
    (without_timeout, lambda: stories.test_the_transaction_of_a_dead_producer_is_aborted_after_its_timeout(NEW, True)),
]


@pytest.mark.parametrize(
    ("break_it", "story"), CASES, ids=[f"{i}-{rule.__name__}" for i, (rule, _) in enumerate(CASES)]
)
@pytest.mark.slow
def test_a_story_fails_when_a_rule_is_disabled(break_it: Callable[[Patch], None], story: Callable[[], Any]) -> None:
    story()
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        with fresh_load.unwatched(), pytest.raises(FAILURES):
            story()
