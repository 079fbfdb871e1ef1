"""`ottla serve` with one rule switched off, to see whether `ottla verify` notices. Spec: R7

`python -m tests.support.processes.broken_broker serve …`; OTTLA_BROKEN names the rule: a key of RULES.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.coordinator.group.offset_requests import OffsetRequests
from ottla.replication.replica import Replica
from tests.stories import test_transaction_rules_matter as transaction_rules

Patch = pytest.MonkeyPatch
VARIABLE = "OTTLA_BROKEN"


def without_waiting_for_replicas(patch: Patch) -> None:
    """The leader alone decides what is committed."""

    def alone(self: Replica, *, log_end_offset: int, high_watermark: int, **_: Any) -> int:
        return log_end_offset if self.is_leader else high_watermark

    patch.setattr(Replica, "committed_offset", alone)


def without_any_epoch_check(patch: Patch) -> None:
    """A fenced producer may continue: partitions, coordinator and verification let it."""
    transaction_rules.without_epoch_check(patch)
    transaction_rules.without_coordinator_epoch_check(patch)
    transaction_rules.without_verification(patch)


def without_generation_fencing(patch: Patch) -> None:
    """Members of old generations, and members that were removed, may commit."""
    transaction_rules.without_generation_fencing(patch)
    patch.setattr(OffsetRequests, "_check_committer", lambda *_: None)


RULES: dict[str, Callable[[Patch], None]] = {
    "last stable offset": transaction_rules.without_last_stable_offset,
    "aborted index": transaction_rules.without_aborted_index,
    "sequence check": transaction_rules.without_sequence_check,
    "epoch check": without_any_epoch_check,
    "high watermark": without_waiting_for_replicas,
    "generation fencing": without_generation_fencing,
}

if __name__ == "__main__":
    RULES[os.environ[VARIABLE]](pytest.MonkeyPatch())
    sys.exit(main(sys.argv[1:]))
