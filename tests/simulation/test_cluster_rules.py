"""Each rule that keeps a cluster's records is switched off once, and a story fails. Spec: R7

If no story fails without a rule, a test is missing. Rules that another rule covers for in the simulation are switched
off in the unit tests of their module.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import KafkaError
from ottla.log import partition_log
from ottla.log.partition_log import PartitionLog
from ottla.metadata.changes import registration
from ottla.metadata.controller import elections
from ottla.metadata.controller.elections import Election
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.store import Set
from ottla.replication import following
from ottla.replication.applying import ImageApplier
from ottla.replication.replica import Follower, Replica
from tests.simulation import test_cluster_power as power
from tests.simulation import test_cluster_stories as stories
from tests.support import fresh_load
from tests.support.worlds import cluster_check, cluster_load

ATTEMPTS = 12
"""Seeds per rule. One that fails is enough."""

Switch = Callable[[pytest.MonkeyPatch], None]


def misses(switch_off: Switch, story: Callable[[int], None], *, attempts: int = ATTEMPTS) -> None:
    """Some seed of the story fails without the rule."""
    with fresh_load.unwatched(), pytest.MonkeyPatch.context() as patch:
        switch_off(patch)
        # A story that hangs has failed, too: no need to wait long for it.
        patch.setattr(cluster_check, "PATIENCE_S", 15)
        patch.setattr(cluster_load, "PATIENCE_S", 60)
        for seed in range(attempts):
            try:
                story(seed)
            except (AssertionError, KafkaError):
                return
    raise AssertionError(f"no seed of {story.__name__} fails without the rule")


def remember_who_left(patch: pytest.MonkeyPatch) -> None:
    """A leader also forgets the progress of those that leave the in-sync set, which covers for two other rules."""
    become = Replica.become

    def remembering(self: Replica, partition: Any, **options: Any) -> bool:
        before = dict(self.followers)
        is_new_epoch = become(self, partition, **options)
        if not is_new_epoch:
            self.followers = {broker: before.get(broker, now) for broker, now in self.followers.items()}
        return is_new_epoch

    patch.setattr(Replica, "become", remembering)


def test_acknowledgements_wait_for_the_in_sync_set() -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        def alone(self: Replica, *, log_end_offset: int, high_watermark: int, **_: Any) -> int:
            return log_end_offset if self.is_leader else high_watermark

        patch.setattr(Replica, "committed_offset", alone)

    misses(switch_off, stories.test_a_killed_leader_is_replaced_and_returns)


def test_too_few_replicas_in_sync_acknowledge_nothing() -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Replica, "has_enough_in_sync", True)

    misses(switch_off, power.test_one_replica_alone_acknowledges_nothing_that_two_must_have)


def test_a_joiner_counts_from_its_proposal_on() -> None:
    """KIP-497."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Replica, "_counts", lambda self, follower, end, now: follower.broker_id in self.isr)

    misses(switch_off, stories.test_a_follower_that_is_cut_off_while_it_joins_misses_no_committed_record)


def test_the_dead_do_not_count() -> None:
    """KAFKA-15021."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        remember_who_left(patch)
        patch.setattr(Replica, "is_eligible", lambda self, follower: True)

    misses(switch_off, stories.test_the_dead_do_not_hold_the_high_watermark_back)


def test_a_restarted_follower_starts_from_what_it_has() -> None:
    """KIP-903: without the epoch of its registration, its progress from before the restart would count."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        remember_who_left(patch)
        fetched = Follower.fetched

        def forgetful(self: Follower, *args: Any, **options: Any) -> None:
            fetched(self, *args, **options)
            self.broker_epoch = -1

        patch.setattr(Follower, "fetched", forgetful)

    misses(switch_off, power.test_a_follower_that_lost_power_is_in_sync_only_when_it_has_caught_up_again)


def test_a_broker_that_restarts_uncleanly_leaves_the_in_sync_sets() -> None:
    """KIP-966."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        rejoin = registration._rejoin  # noqa: SLF001 - the rule itself

        def trusting(*args: Any, is_clean: bool, **options: Any) -> Any:
            return rejoin(*args, is_clean=True, **options)

        patch.setattr(registration, "_rejoin", trusting)

    misses(switch_off, power.test_one_broker_loses_power_and_the_others_are_only_killed)


def test_only_replicas_in_sync_are_elected() -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        def anybody(self: Election, topic: Any, partition: Any) -> Any:
            found = self.unclean_successor(partition)
            return found or elections.Roles(-1, partition.isr, partition.elr, partition.recovering)

        patch.setattr(Election, "successor", anybody)

    misses(switch_off, power.test_only_the_last_replica_in_sync_may_lead_again)


def test_a_follower_drops_what_its_leader_does_not_have() -> None:
    """KIP-101."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        decide = following.decide

        def stubborn(followed: Any, answered: int, data: Any) -> Any:
            step = decide(followed, answered, data)
            return following.IGNORE if step.do is following.Do.TRUNCATE else step

        patch.setattr("ottla.replication.fetchers.decide", stubborn)

    misses(switch_off, stories.test_records_that_only_a_dead_leader_had_are_dropped_when_it_returns)


def test_followers_remember_producers() -> None:
    """Otherwise the next leader takes a repeated batch for a new one."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(partition_log, "note_batch", lambda *args: None)

    misses(switch_off, stories.test_a_killed_leader_is_replaced_and_returns)


def test_a_new_leader_does_not_tell_an_old_end() -> None:
    """OFFSET_NOT_AVAILABLE until its high watermark has reached the start of its epoch."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Replica, "is_high_watermark_current", lambda self, high_watermark: True)

    misses(switch_off, stories.test_a_new_leader_that_cannot_know_the_end_does_not_tell_one)


def test_an_empty_log_takes_a_batch_in_which_the_leaders_log_starts() -> None:
    """KAFKA-6975."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(PartitionLog, "size_bytes", 1)

    misses(switch_off, stories.test_records_are_deleted_while_a_follower_is_away)


def test_a_follower_that_ends_before_its_leader_starts_begins_there() -> None:
    """KAFKA-7414: out of range is never fatal to a follower."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        decide = following.decide

        def waiting(followed: Any, answered: int, data: Any) -> Any:
            step = decide(followed, answered, data)
            return following.RETRY if step.do is following.Do.START_OVER else step

        patch.setattr("ottla.replication.fetchers.decide", waiting)

    misses(switch_off, stories.test_segments_expire_while_a_follower_is_away)


def test_a_returning_broker_drops_the_records_of_a_deleted_topic() -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        open_log = ImageApplier._open_log  # noqa: SLF001 - the rule itself

        def trusting(self: ImageApplier, topic_partition: Any, topic_id: bytes, config: Any, **options: Any) -> None:
            found = self._directory.logs.get(topic_partition)
            if found is not None:
                found.topic_id = topic_id
            open_log(self, topic_partition, topic_id, config, **options)

        patch.setattr(ImageApplier, "_open_log", trusting)

    misses(switch_off, stories.test_a_topic_is_deleted_and_created_again_while_a_broker_is_away)


def test_a_directory_without_a_topic_id_is_not_trusted_if_others_have_everything() -> None:
    """After a power failure the file with the topic's id may be gone. The records may be those of a deleted topic."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ImageApplier, "_others_have_all", lambda self, partition: False)

    misses(switch_off, stories.test_a_topic_is_deleted_and_created_again_while_a_broker_is_away)


def test_metadata_changes_are_compare_and_set() -> None:
    """Otherwise a change that was decided from an old state undoes a newer one."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        operations = MetadataFollower._operations  # noqa: SLF001 - the rule itself

        def blind(self: MetadataFollower, decision: Any) -> list[Any]:
            found = operations(self, decision)
            return [each._replace(version=-1) if isinstance(each, Set) else each for each in found]

        patch.setattr(MetadataFollower, "_operations", blind)

    misses(switch_off, stories.test_changes_that_two_brokers_make_at_once_are_both_kept)


def test_an_epoch_without_records_is_cut_too() -> None:
    """KAFKA-10706."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        truncate_to = PartitionLog.truncate_to

        def only_records(self: PartitionLog, offset: int) -> None:
            if offset < self.log_end_offset:
                truncate_to(self, offset)

        patch.setattr(PartitionLog, "truncate_to", only_records)

    misses(switch_off, stories.test_elections_without_records_in_between_leave_no_disagreement)
