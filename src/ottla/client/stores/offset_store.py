"""OffsetStore, the interface for offsets stored outside the group, and FileOffsetStore, which uses a local file."""

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ottla.client.core.arguments import ByPartition, PartitionLike, as_partitions, as_positions
from ottla.errors import OttlaError
from ottla.types import TopicPartition, offsets_by_topic, offsets_from_topics

FORMAT = 1


class OffsetStore(ABC):
    """Keeps, for each partition, the offset of the next record to read.

    `load` is called once for every partition that is assigned, `save` with the partitions that have advanced. When
    `save` returns, the offsets survive a crash.

    A custom store calls `stored()` once offsets are durable, so that `mirror` can publish them.
    """

    mirror: Callable[[Mapping[TopicPartition, int]], None] | None = None
    """Called with offsets once they are durable: a GroupMirror, which makes the lag visible in every Kafka tool."""

    known: Mapping[TopicPartition, int] | None = None
    """The offsets last loaded or saved, if the store tracks them itself because a rollback may undo a save."""

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Passes durable offsets to `mirror`."""
        if self.mirror is not None and offsets:
            self.mirror(offsets)

    @abstractmethod
    def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stored offset of each of these partitions that has one."""

    @abstractmethod
    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores these offsets. Those of other partitions are kept."""


class FileOffsetStore(OffsetStore):
    """Offsets in a small JSON file. Every save replaces the file atomically, so a crash leaves the old or the new one.

    The members of a group on one host may share the file: a save only changes its own partitions, under a lock on
    `positions.json.lock` that a crash releases. A member that takes over a partition continues at the offset that the
    previous one has saved. If several members read the same partition, as in a broadcast, each needs its own file.

    >>> store = FileOffsetStore("positions.json")
    >>> store.save({TopicPartition("orders", 0): 42})
    >>> store.load([TopicPartition("orders", 0), TopicPartition("orders", 1)])
    {TopicPartition(topic='orders', partition=0): 42}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        known = self._read()
        return {partition: known[partition] for partition in as_partitions(partitions) if partition in known}

    def save(self, offsets: ByPartition[int]) -> None:
        moved = as_positions(offsets)
        with self._locked():
            self._replace({**self._read(), **moved})
        self.stored(moved)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes other processes that save. The lock has its own file because the data file is replaced each time."""
        with open(self.path.with_name(self.path.name + ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, offsets: Mapping[TopicPartition, int]) -> None:
        text = json.dumps({"format": FORMAT, "offsets": offsets_by_topic(offsets)}, indent=1)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> dict[TopicPartition, int]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return {}
        try:
            stored = json.loads(text)
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']}")
            return offsets_from_topics(stored["offsets"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # To start without offsets would repeat or lose records silently.
            raise OttlaError(
                f"{self.path} is not a valid offsets file: {error}",
                "Restore it from a backup, or delete it to start at auto.offset.reset.",
            ) from error
