"""Mutation tests: one rule of elections, in-sync sets or sessions is disabled at a time, and a test fails. Spec: R7.

If no test fails without a rule, a test is missing. Each case runs the test first with the rule, then without it.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.changes import config_changes, reassignments, registration
from ottla.metadata.controller import duties, elections, isr_changes
from ottla.metadata.controller.decisions import Unchanged
from ottla.metadata.controller.elections import Election
from ottla.metadata.controller.isr_proposals import IsrProposals
from ottla.metadata.controller.sweep import Sweep
from ottla.metadata.sqlite.session_locks import Peers
from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import Check, Operation
from ottla.testing.memory_store import MemoryStore, MemoryTree
from tests.support.worlds import follower_world
from tests.unit.metadata import test_membership
from tests.unit.metadata.changes import test_config_changes, test_features, test_reassignments
from tests.unit.metadata.controller import test_elections, test_isr_changes
from tests.unit.metadata.sqlite import test_sqlite_store

Patch = pytest.MonkeyPatch


def nothing(*_: Any, **__: Any) -> None:
    """Replaces a rule."""


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class Rule(NamedTuple):
    """A rule, how to disable it, and the test that then fails."""

    name: str
    disable: Callable[[Patch], Any]
    test: Callable[..., None]
    arguments: dict[str, Any] = {}  # noqa: RUF012


def set_to(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, value)


ROLES = registration._rejoin  # noqa: SLF001
ELIGIBLE = Election.eligible
SUCCESSOR = Election.successor


def keeps_its_place(election: Any, topic: Any, partition: Any, broker_id: int, *, is_clean: bool) -> Any:
    return ROLES(election, topic, partition, broker_id, is_clean=True)


def always_unclean(election: Any, topic: Any, partition: Any, broker_id: int, *, is_clean: bool) -> Any:
    return ROLES(election, topic, partition, broker_id, is_clean=False)


def forgets_recovering(election: Any, topic: Any, partition: Any, broker_id: int, *, is_clean: bool) -> Any:
    others = tuple(r for r in partition.recovering if r.broker_id != broker_id)
    return ROLES(election, topic, partition._replace(recovering=others), broker_id, is_clean=is_clean)


def first_log(self: Election, partition: Any) -> int | None:
    """The first member that is back leads, whatever its log."""
    return next((r.broker_id for r in partition.recovering if r.end_offset >= 0), None)


def unlimited_changes(sweep: Sweep, image: Any, situation: Any, find: Any, limit: int) -> list[Any]:
    found = (find(topic, partition) for topic in image.topics.values() for partition in topic.partitions)
    return [change for change in found if change is not None]


def empty_in_sync_set(self: Election, topic: Any, partition: Any) -> Any:
    roles = SUCCESSOR(self, topic, partition)
    return roles._replace(isr=()) if roles.leader == -1 else roles


def without_awaited(self: Election, *arguments: Any, **more: Any) -> None:
    more.pop("awaited", None)
    ELECTION(self, *arguments, **more)


ELECTION = Election.__init__
APPLY = MemoryTree.apply


def without_checks(self: MemoryTree, operations: Sequence[Operation], session_id: int) -> None:
    APPLY(self, [operation for operation in operations if not isinstance(operation, Check)], session_id)


RULES = [
    # The controller.
    Rule(
        "a commit of the controller requires its key",
        set_to(elections, "CONTROLLER_ONLY", ()),
        test_membership.test_a_controller_that_was_replaced_cannot_elect,
    ),
    Rule(
        "the controller's epoch increases",
        set_to(records, "write_controller_epoch", always(b"1")),
        test_elections.test_every_controller_has_a_higher_epoch_which_is_written_into_what_it_decides,
    ),
    Rule(
        "a new controller elects in the commit in which it takes over",
        set_to(elections, "_elections", always(iter(()))),
        test_elections.test_every_controller_has_a_higher_epoch_which_is_written_into_what_it_decides,
    ),
    Rule(
        "an election changes at most 100 partitions in one commit",
        set_to(Sweep, "changes", unlimited_changes),
        test_elections.test_an_election_changes_a_limited_number_of_partitions_in_one_commit,
    ),
    Rule(
        "the proposals of one tick are committed in chunks",
        set_to(IsrProposals, "propose", lambda self, change: self._commit([change])),
        test_membership.test_the_proposals_of_one_tick_are_one_commit_of_at_most_100_keys,
    ),
    # Who may lead.
    Rule(
        "the in-sync set is never empty",
        set_to(Election, "successor", empty_in_sync_set),
        test_elections.test_without_a_live_in_sync_replica_there_is_no_leader_until_one_returns,
    ),
    Rule(
        "only members of the in-sync set lead",
        set_to(test_elections.Cluster, "allows_unclean_election", always(True)),
        test_elections.test_without_a_live_in_sync_replica_there_is_no_leader_until_one_returns,
    ),
    Rule(
        "members that leave below the minimum stay eligible",
        set_to(Election, "eligible", always(())),
        test_elections.test_members_that_leave_below_min_insync_replicas_stay_eligible,
    ),
    Rule(
        "nobody is eligible while enough are in sync",
        set_to(Election, "min_isr", always(9)),
        test_elections.test_members_that_leave_below_min_insync_replicas_stay_eligible,
    ),
    Rule(
        "a changed minimum ends eligibility",
        set_to(config_changes, "_without_eligible_leaders", always([])),
        test_config_changes.test_a_changed_min_insync_replicas_ends_the_eligibility_of_replicas_outside_the_in_sync_set,
    ),
    Rule(
        "a leaving broker is not elected",
        set_to(elections, "electable_brokers", lambda image: set(image.brokers)),
        test_elections.test_a_leaving_broker_is_not_elected,
    ),
    # Restarts.
    Rule(
        "a broker that cannot prove its epoch leaves in-sync sets",
        set_to(registration, "_rejoin", keeps_its_place),
        test_elections.test_a_broker_that_lost_its_tail_leaves_the_in_sync_set_and_leadership_when_it_registers,
    ),
    Rule(
        "an eligible replica that cannot prove its epoch is no longer eligible",
        set_to(registration, "_rejoin", keeps_its_place),
        test_elections.test_an_eligible_replica_that_restarts_uncleanly_is_no_longer_eligible,
    ),
    Rule(
        "a broker that proves its epoch keeps its place",
        set_to(registration, "_rejoin", always_unclean),
        test_elections.test_a_broker_that_proves_its_previous_epoch_keeps_its_place,
    ),
    Rule(
        "an expired session is no unclean restart",
        set_to(registration, "_rejoin", always_unclean),
        test_membership.test_an_expired_session_is_not_an_unclean_restart,
    ),
    Rule(
        "after a power failure all members are waited for",
        set_to(Election, "_longest_log", first_log),
        test_elections.test_after_a_power_failure_the_replica_with_the_longest_log_leads,
    ),
    Rule(
        "the log of a replica that lost its tail is still short after a clean restart",
        set_to(registration, "_rejoin", forgets_recovering),
        test_elections.test_a_replica_that_lost_its_tail_does_not_regain_it_by_a_clean_restart,
    ),
    Rule(
        "a new directory does not replace the only copy",
        set_to(test_elections, "Joining", lambda *a, has_new_directory=False, **m: registration.Joining(*a, **m)),
        test_elections.test_a_new_data_directory_is_rejected_if_nobody_else_has_the_records,
    ),
    # Cold start.
    Rule(
        "nobody is elected around an expected broker",
        set_to(Election, "__init__", without_awaited),
        test_elections.test_nobody_is_elected_around_a_broker_that_is_expected,
    ),
    Rule(
        "a cold start waits for known brokers",
        set_to(duties, "awaited_brokers", always(())),
        test_membership.test_at_a_cold_start_the_first_broker_does_not_take_everything,
    ),
    Rule(
        "an expected broker that does not come is given up",
        set_to(duties, "awaited_brokers", lambda image, seen, *_: image.known_brokers.keys() - seen),
        test_membership.test_a_broker_that_does_not_come_is_awaited_only_for_a_while,
    ),
    # In-sync sets.
    Rule(
        "a proposal is for the current partition epoch",
        set_to(isr_changes, "_problem", always(ErrorCode.NONE)),
        test_membership.test_a_leader_changes_its_in_sync_set_and_all_see_it,
    ),
    Rule(
        "a member is still the same registration at the commit",
        set_to(isr_changes, "Unchanged", lambda key, created: Unchanged(key)),
        test_isr_changes.test_the_commit_requires_that_every_member_is_still_the_same_registration,
    ),
    Rule(
        "a follower that restarted is not added",
        set_to(MemoryTree, "apply", without_checks),
        test_membership.test_a_follower_that_restarted_meanwhile_is_not_added,
    ),
    # Leaving.
    Rule(
        "a stopping broker hands over",
        set_to(elections, "_handovers", always(iter(()))),
        test_elections.test_a_leaving_broker_transfers_leadership,
    ),
    Rule(
        "leadership returns",
        set_to(elections, "is_imbalanced", always(False)),
        test_membership.test_leadership_returns_after_the_preferred_replica_was_in_sync_for_a_while,
    ),
    Rule(
        "a reassignment completes only when added replicas are in sync",
        set_to(reassignments, "_completed", lambda election, p: p._replace(adding=(), removing=())),
        test_reassignments.test_a_reassignment_completes_when_the_added_replicas_are_in_sync,
    ),
    # Sessions.
    Rule(
        "a session that was not touched in time is not confirmed",
        set_to(SqliteStore, "is_confirmed", property(lambda self: bool(self.session_id))),
        test_sqlite_store.test_a_session_that_was_not_touched_in_time_is_no_longer_confirmed,
    ),
    Rule(
        "a process that hangs inside a transaction is killed",
        set_to(Peers, "_end_stuck_process", nothing),
        test_sqlite_store.test_a_process_that_hangs_inside_a_transaction_is_killed,
        {"writer": 4711, "killed": [4711]},
    ),
    Rule(
        "only the process that holds the lock is killed",
        set_to(test_sqlite_store.FakeLocks, "writing_process", always(None)),
        test_sqlite_store.test_a_process_that_hangs_inside_a_transaction_is_killed,
        {"writer": 4712, "killed": []},
    ),
    # Upgrades.
    Rule(
        "a broker does not join levels that it does not support",
        set_to(registration, "check_supported", nothing),
        test_features.test_a_broker_does_not_join_a_cluster_whose_levels_it_does_not_support,
        {"levels": {"transaction.version": 9}, "problem": "supports levels 0 to 2"},
    ),
]


def run(test: Callable[..., Any], arguments: dict[str, Any], directory: Path, caplog: Any) -> None:
    """Calls a test of another file with the fixtures it requests."""
    wanted = inspect.signature(test).parameters
    directory.mkdir()
    tree = MemoryTree()
    with pytest.MonkeyPatch.context() as patch:
        fixtures = {
            "tree": tree,
            "memory_world": test_membership.World(lambda: MemoryStore(tree)),
            "world": test_membership.World(lambda: MemoryStore(tree)),
            "path": str(directory / "metadata.sqlite"),
            "tmp_path": directory,
            "monkeypatch": patch,
            "caplog": caplog,
        }
        given = {name: fixtures[name] for name in wanted if name in fixtures}
        test(**{**{n: v for n, v in arguments.items() if n not in fixtures}, **given})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_test_fails_when_a_rule_is_disabled(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(rule.test, rule.arguments, tmp_path / "whole", caplog)
    caplog.clear()
    monkeypatch.setattr(follower_world, "TIMEOUT_S", 0.5)
    rule.disable(monkeypatch)
    # Any failure counts.
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(rule.test, rule.arguments, tmp_path / "broken", caplog)
