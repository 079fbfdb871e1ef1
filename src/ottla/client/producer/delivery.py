"""The promise that send() gives and the way in that leaves it: intake.py, compiled where there is a build of it."""

from typing import TYPE_CHECKING, Any

from ottla.protocol._speedups import find_compiled

INTERFACE = 2
"""What intake.py offers, as numbered there: a build of an older source is passed over."""

if TYPE_CHECKING:
    from ottla.client.producer.intake import (
        BatchOutcome,
        Delivery,
        Intake,
        Lane,
        OpenBatch,
        Sending,
        Sticky,
        TopicLanes,
        murmur2,
        partition_for_key,
        record_size,
    )
else:
    _intake: Any = find_compiled(f"{__package__}._intake", INTERFACE)
    if _intake is None:
        from ottla.client.producer import intake as _intake
    BatchOutcome = _intake.BatchOutcome
    Delivery = _intake.Delivery
    Intake = _intake.Intake
    Lane = _intake.Lane
    OpenBatch = _intake.OpenBatch
    Sending = _intake.Sending
    Sticky = _intake.Sticky
    TopicLanes = _intake.TopicLanes
    murmur2 = _intake.murmur2
    partition_for_key = _intake.partition_for_key
    record_size = _intake.record_size

__all__ = [
    "BatchOutcome",
    "Delivery",
    "Intake",
    "Lane",
    "OpenBatch",
    "Sending",
    "Sticky",
    "TopicLanes",
    "murmur2",
    "partition_for_key",
    "record_size",
]
