"""`ottla consume --group`: reads as a member of a group, shows its partitions, and commits printed records."""

import sys
from collections.abc import Callable
from typing import Any

from rich.text import Text

from ottla.cli.output import error_console
from ottla.client.blocking import Consumer
from ottla.client.core.model import ConsumerRecord
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

POLL_MS = 500
COMMIT_INTERVAL_S = 1.0
RESETS = {"beginning": "earliest", "end": "latest"}
"""--from, for partitions without a committed offset -> auto.offset.reset."""


def reset_of(kind: str, text: str, group: str) -> str:
    """The auto.offset.reset for --from. A group starts at its committed offsets, so an offset or a time is an error."""
    if kind not in RESETS:
        raise OttlaError(
            f"--from {text} cannot be combined with --group: a group starts at its committed offsets",
            f"use beginning or end for partitions without one, or move them with: ottla group reset-offsets {group}",
        )
    return RESETS[kind]


class GroupReading(RebalanceListener):
    """Prints records as a member of a group. Only printed records are committed, not those only fetched."""

    def __init__(self, consumer: Consumer, group: str, show: Callable[[ConsumerRecord], str | None]) -> None:
        self._consumer = consumer
        self._group = group
        self._show = show
        self._printed: dict[TopicPartition, int] = {}
        """The offsets to commit."""
        self._committed_at = monotonic()

    def run(self, topic: str, limit: int | None, exit_at_end: bool) -> None:
        """Until the limit or the end of the topic is reached; Ctrl-C raises."""
        self._consumer.subscribe([topic], listener=self)
        shown = 0
        try:
            while limit is None or shown < limit:
                shown += self._print(self._consumer.poll(POLL_MS), None if limit is None else limit - shown)
                if exit_at_end and self._consumer.is_at_end():
                    return
                if monotonic() >= self._committed_at + COMMIT_INTERVAL_S:
                    self._commit()
        finally:
            sys.stdout.flush()
            self._commit()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._say("assigned", sorted(self._consumer.assignment()))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._say("revoked", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._printed.pop(partition, None)
        self._say("lost", partitions)

    def _print(self, records: Any, most: int | None) -> int:
        lines: list[str] = []
        for record in records:
            if most is not None and len(lines) == most:
                break
            line = self._show(record)
            if line is not None:
                lines.append(line)
            self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        return len(lines)

    def _commit(self) -> None:
        self._committed_at = monotonic()
        printed, self._printed = self._printed, {}
        if not printed:
            return
        try:
            self._consumer.commit(printed)
        except KafkaError as error:  # another member has the partitions by now, and prints these records again
            error_console().print(Text(f"group {self._group}: offsets were not committed: {error}", style="dim"))

    def _say(self, what: str, partitions: list[TopicPartition]) -> None:
        names = ", ".join(map(str, partitions)) or "no partitions"
        error_console().print(Text(f"group {self._group}: {what} {names}", style="dim"))
