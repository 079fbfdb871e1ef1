"""Mutation tests: one rule of groups is disabled at a time, and a test fails. Spec: R7.

If no test fails without a rule, a test is missing. Each case runs the test first with the rule, then without it.
"""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ottla.coordinator import runtime
from ottla.coordinator.effects import Effects
from ottla.coordinator.group import joining, membership, offset_requests, offsets, rebalance
from ottla.coordinator.group.classic_group import ClassicGroup, Member
from ottla.coordinator.group.joining import Joining
from ottla.coordinator.group.offset_requests import OffsetRequests
from ottla.coordinator.group.offsets import Offsets
from ottla.coordinator.group.rebalance import ClassicRebalance
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.hosted import HostedShard
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.errors import ErrorCode, KafkaError
from tests.support import fresh_load
from tests.support.worlds.coordinator_world import CoordinatorWorld

Patch = pytest.MonkeyPatch
UNIT = Path(__file__).parent.parent / "unit" / "coordinator"


def nothing(*_: Any, **__: Any) -> None:
    """Replaces a rule."""


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class Rule(NamedTuple):
    """A rule, how to disable it, and the test that then fails."""

    name: str
    disable: Callable[[Patch], Any]
    test: str
    arguments: dict[str, Any] = {}  # noqa: RUF012


def set_to(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, value)


def any_member(self: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
    found = self.members.get(member_id) or next(iter(self.members.values()), None)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return found


def member_without_instance(self: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None:
        member_id = self.static_members.get(instance_id, member_id)
    return any_member(self, member_id, None)


def complete_early(self: ClassicRebalance, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
    if group.has_all_joined():
        self._complete_join(group, now, effects)


def visible_at_once(self: Offsets, record_offset: int, key: bytes, value: bytes | None, producer_id: int) -> str:
    return REPLAY(self, record_offset, key, value, -1)


def in_any_state(module: Any) -> Callable[[Patch], None]:
    """Makes a module ignore the states of groups."""
    return set_to(
        module, "GroupState", SimpleNamespace(COMPLETING_REBALANCE=None, PREPARING_REBALANCE=None, STABLE=None)
    )


def expire_everything(patch: Patch) -> None:
    patch.setattr(offsets, "_may_expire", always(True))
    patch.setattr(ClassicGroup, "is_subscribed", always(False))


def expire_by_commit(patch: Patch) -> None:
    patch.setattr(offsets, "_may_expire", always(True))
    patch.setattr(offsets, "_idle_since", lambda group, committed_at: committed_at)


def first_session_only(self: ClassicRebalance, group: ClassicGroup, member: Member, now: int) -> None:
    if member.session_deadline is None or member.session_deadline > now + member.session_timeout_ms:
        RESTART(self, group, member, now)


def reply_at_once(self: CoordinatorRuntime[Any], hosted: Any, effects: Effects[Any]) -> None:
    self._deliver(effects)


REPLAY = Offsets.replay
RESTART = ClassicRebalance.restart_session
ANY_PARTITION = ("orders", bytes(16), 10**9, ErrorCode.NONE)

RULES = [
    # Fencing.
    Rule(
        "a commit of an older generation is refused",
        set_to(ClassicGroup, "check_generation", nothing),
        "test_group_offsets.test_a_commit_of_another_generation_is_refused",
        {"generation": 0},
    ),
    Rule(
        "a sync of an older generation is refused",
        set_to(ClassicGroup, "check_generation", nothing),
        "test_group_sync.test_sync_of_another_generation_is_refused",
        {"generation": 0},
    ),
    Rule(
        "an unknown member is refused",
        set_to(ClassicGroup, "member", any_member),
        "test_group_offsets.test_a_commit_of_an_unknown_member_is_refused",
    ),
    Rule(
        "the old holder of an instance id is fenced",
        set_to(ClassicGroup, "member", member_without_instance),
        "test_group_static_members.test_the_old_member_id_of_a_static_member_is_fenced_in_every_request",
    ),
    Rule(
        "a transactional zombie is fenced by its generation",
        set_to(OffsetRequests, "_check_transactional_committer", nothing),
        "test_group_transactions.test_a_stale_member_is_fenced_by_its_generation",
    ),
    Rule(
        "commits are refused while the leader assigns",
        in_any_state(offset_requests),
        "test_group_offsets.test_while_the_leader_assigns_commits_are_refused",
    ),
    Rule(
        "a heartbeat during the join phase reports the rebalance",
        in_any_state(membership),
        "test_group_sync.test_a_heartbeat_during_a_rebalance_reports_it_and_keeps_the_member_alive",
    ),
    # Joining.
    Rule(
        "a first join only returns a member id",
        set_to(joining, "MEMBER_ID_REQUIRED_SINCE", 99),
        "test_group_join.test_a_first_join_only_returns_a_member_id",
    ),
    Rule(
        "the join phase waits for pending members",
        set_to(ClassicGroup, "has_all_joined", lambda self: self.joined_count == len(self.members)),
        "test_group_join.test_the_join_phase_waits_for_pending_members",
    ),
    Rule(
        "a member must support what all support",
        set_to(ClassicGroup, "supports", always(True)),
        "test_group_join.test_a_group_has_one_protocol_type",
    ),
    Rule(
        "most votes win",
        set_to(ClassicGroup, "vote", lambda self: min(self.candidates())),
        "test_group_join.test_the_protocol_with_most_votes_wins",
    ),
    Rule(
        "only the leader sees the members",
        set_to(ClassicGroup, "is_leader", always(True)),
        "test_group_join.test_only_the_leader_sees_the_members",
    ),
    Rule(
        "a leader that rejoins starts a rebalance",
        set_to(ClassicGroup, "is_leader", always(False)),
        "test_group_join.test_the_leader_of_a_stable_group_rebalances_it_by_rejoining",
    ),
    Rule(
        "a full group refuses new members",
        set_to(Joining, "_admit", nothing),
        "test_group_join.test_a_full_group_accepts_no_more_members",
    ),
    Rule(
        "a returning leader skips the assignment",
        set_to(joining, "SKIP_ASSIGNMENT_SINCE", 99),
        "test_group_static_members.test_a_returning_static_leader_must_skip_the_assignment",
    ),
    Rule(
        "before v9 a returning leader does not learn that it leads",
        set_to(joining, "SKIP_ASSIGNMENT_SINCE", 0),
        "test_group_static_members.test_before_version_nine_a_returning_leader_gets_its_old_id_as_leader",
        {"version": 8},
    ),
    Rule(
        "silent static members stay in the group",
        set_to(Member, "is_static", False),
        "test_group_static_members.test_a_silent_static_member_stays_through_a_rebalance",
    ),
    # The assignment.
    Rule(
        "only the leader's assignment counts",
        set_to(ClassicGroup, "is_leader", always(True)),
        "test_group_sync.test_only_the_leaders_assignment_counts",
    ),
    Rule(
        "an assignment is stored",
        set_to(Effects, "append", nothing),
        "test_group_failover.test_a_stored_assignment_survives_even_if_no_member_received_it",
    ),
    Rule(
        "an assignment that cannot be stored is refused before anything changes",
        set_to(ClassicRebalance, "_refuse_assignment", nothing),
        "test_group_sync.test_an_assignment_too_large_to_store_is_refused_and_the_group_rebalances",
    ),
    # Time.
    Rule(
        "a silent member is removed after its session timeout",
        set_to(ClassicRebalance, "_session_due", nothing),
        "test_group_timers.test_a_silent_member_is_removed_after_its_session_timeout_and_the_others_rejoin",
    ),
    Rule(
        "heartbeats and commits keep a session",
        set_to(ClassicRebalance, "restart_session", first_session_only),
        "test_group_timers.test_a_commit_keeps_a_member_alive",
    ),
    Rule(
        "sessions restart after a load",
        set_to(ClassicRebalance, "after_load", nothing),
        "test_group_failover.test_sessions_restart_after_a_failover",
    ),
    Rule(
        "the initial delay is not cut short",
        set_to(ClassicRebalance, "complete_if_all_joined", complete_early),
        "test_group_timers.test_the_initial_delay_is_not_cut_short_when_all_members_joined",
    ),
    Rule(
        "members that do not rejoin in time are removed",
        set_to(ClassicRebalance, "_join_due", nothing),
        "test_group_timers.test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_removed",
    ),
    Rule(
        "members that never sync are removed",
        set_to(ClassicRebalance, "_sync_due", nothing),
        "test_group_timers.test_a_follower_that_never_syncs_is_removed_even_when_the_group_is_stable",
    ),
    Rule(
        "a new member does not wait forever",
        set_to(joining, "NEW_MEMBER_JOIN_TIMEOUT_MS", 10**9),
        "test_group_timers.test_a_new_member_waits_in_join_for_five_minutes_and_no_longer",
    ),
    Rule(
        "a pending id is forgotten",
        set_to(ClassicGroup, "forget_pending", always(False)),
        "test_group_join.test_a_pending_member_id_is_forgotten_after_the_session_timeout",
    ),
    Rule(
        "deadlines move when the clock jumps",
        set_to(GroupShard, "on_clock_jump", nothing),
        "test_group_timers.test_a_clock_jump_neither_removes_live_members_nor_keeps_dead_ones",
        {"jump_ms": 3_600_000},
    ),
    # Failover.
    Rule(
        "parked requests are answered when the coordinator moves",
        set_to(GroupShard, "on_unloaded", lambda self: Effects()),
        "test_group_failover.test_a_parked_join_gets_not_coordinator_and_the_member_keeps_its_id",
    ),
    Rule(
        "parked syncs are sent back to join",
        set_to(rebalance, "answer_sync", always(False)),
        "test_group_sync.test_a_rebalance_ends_parked_syncs_with_rebalance_in_progress",
    ),
    # Offsets.
    Rule(
        "a pending offset is not visible",
        set_to(Offsets, "replay", visible_at_once),
        "test_group_transactions.test_an_offset_committed_in_a_transaction_is_not_visible_before_it_ends",
    ),
    Rule(
        "a pending offset is unstable",
        set_to(Offsets, "is_pending", always(False)),
        "test_group_transactions.test_a_fetch_of_stable_offsets_must_retry_while_an_offset_is_pending",
    ),
    Rule(
        "a later transactional commit wins",
        set_to(offsets, "record_offset_of", always(0)),
        "test_group_transactions.test_a_later_transactional_commit_wins_over_an_earlier_plain_one",
    ),
    Rule(
        "a later plain commit wins",
        lambda patch: patch.setattr(offsets, "record_offset_of", Growing()),
        "test_group_transactions.test_a_later_plain_commit_wins_over_an_earlier_transactional_one",
    ),
    Rule(
        "metadata has a limit",
        set_to(offset_requests, "utf16_length", always(0)),
        "test_group_offsets.test_metadata_length_is_measured_in_utf16_code_units",
    ),
    Rule(
        "unknown topics and partitions are refused",
        set_to(OffsetRequests, "_resolve", always(ANY_PARTITION)),
        "test_group_offsets.test_a_commit_to_an_unknown_topic_or_partition_is_refused",
    ),
    Rule(
        "offsets of subscribed topics do not expire",
        expire_everything,
        "test_group_expiry.test_offsets_of_subscribed_topics_never_expire",
    ),
    Rule(
        "retention counts from when a group became empty",
        expire_by_commit,
        "test_group_expiry.test_an_empty_groups_retention_counts_from_when_it_became_empty",
    ),
    Rule(
        "offsets of subscribed topics are not deleted",
        set_to(ClassicGroup, "is_subscribed", always(False)),
        "test_group_offsets.test_offsets_of_a_subscribed_topic_are_not_deleted",
    ),
    Rule(
        "deleting a topic deletes its offsets",
        set_to(Offsets, "delete_topics", nothing),
        "test_group_expiry.test_deleting_a_topic_deletes_its_offsets",
    ),
    Rule(
        "a group with members is not deleted",
        set_to(ClassicGroup, "is_empty", True),
        "test_group_expiry.test_a_group_with_members_is_not_deleted",
    ),
    # The runtime.
    Rule(
        "replies wait until their records are committed",
        set_to(CoordinatorRuntime, "_release", reply_at_once),
        "test_coordinator_runtime.test_a_reply_waits_until_its_records_are_committed",
    ),
    Rule(
        "reads wait for the records they have seen",
        set_to(CoordinatorRuntime, "_release", reply_at_once),
        "test_coordinator_runtime.test_a_reply_waits_for_every_record_its_shard_has_applied",
    ),
    Rule(
        "a shard is reloaded after a failed append",
        set_to(CoordinatorRuntime, "_reload", nothing),
        "test_coordinator_runtime.test_an_assignment_that_cannot_be_appended_is_rolled_back",
    ),
    Rule(
        "a log that another broker may have led is reloaded",
        set_to(HostedShard, "may_continue", always(True)),
        "test_coordinator_runtime.test_if_another_broker_may_have_led_in_between_the_log_is_loaded_again",
    ),
    Rule(
        "append errors are translated for coordinator clients",
        set_to(runtime, "APPEND_ERRORS", {}),
        "test_coordinator_runtime.test_a_reply_times_out_when_its_records_are_never_committed",
    ),
    Rule(
        "a clock jump is detected",
        set_to(runtime, "CLOCK_JUMP_MS", 10**12),
        "test_coordinator_runtime.test_a_clock_that_jumps_expires_no_session",
    ),
]


class Growing:
    """Claims that the offset looked at last, the pending one, is the last in the log."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, stored: bytes) -> int:
        self.last += 1
        return self.last


def find(name: str) -> Callable[..., Any]:
    module_name, _, function = name.partition(".")
    spec = importlib.util.spec_from_file_location(module_name, next(UNIT.rglob(f"{module_name}.py")))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)  # type: ignore[no-any-return]


def run(test: Callable[..., Any], arguments: dict[str, Any], directory: Path, caplog: Any) -> None:
    """Calls a test of another file with the fixtures it requests."""
    wanted = inspect.signature(test).parameters
    given = dict(arguments)
    directory.mkdir()
    worlds = []
    with pytest.MonkeyPatch.context() as patch:
        for name, replicas in (("world", (0,)), ("slow", (0, 1))):
            if name in wanted:
                given[name] = world = CoordinatorWorld(str(directory))
                world.topic("orders", partitions=3)
                world.offsets_topic(replicas=replicas)
                worlds.append(world)
        given |= {n: v for n, v in (("tmp_path", directory), ("monkeypatch", patch), ("caplog", caplog)) if n in wanted}
        try:
            test(**given)
        finally:
            for world in worlds:
                world.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_test_fails_when_a_rule_is_disabled(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    test = find(rule.test)
    run(test, rule.arguments, tmp_path / "whole", caplog)
    caplog.clear()
    rule.disable(monkeypatch)
    # Any failure counts.
    with fresh_load.unwatched(), pytest.raises(Exception):  # noqa: B017, PT011
        run(test, rule.arguments, tmp_path / "broken", caplog)
