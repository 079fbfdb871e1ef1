"""Where a consumer can keep its positions outside the group: the interface, and a store in a local file."""

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ottla.errors import OttlaError
from ottla.types import TopicPartition

FORMAT = 1


class OffsetStore(ABC):
    """Keeps, for each partition, the offset of the next record to read.

    `load` is asked once for every partition that a consumer gets; `save` is told of all of them that have moved. An
    offset that `save` has returned for survives a crash.

    A store of your own calls `stored()` once offsets are safe, so that `mirror` can show them to others.
    """

    mirror: Callable[[Mapping[TopicPartition, int]], None] | None = None
    """Told of every offset that is stored for good: a GroupMirror, by which lag appears in every Kafka tool."""

    known: Mapping[TopicPartition, int] | None = None
    """What was last loaded or saved, of a store that counts itself since a rollback may undo what was saved."""

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Passes on what is safe now."""
        if self.mirror is not None and offsets:
            self.mirror(offsets)

    @abstractmethod
    def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stored offset of each of these partitions that has one."""

    @abstractmethod
    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores these offsets; those of other partitions stay."""


class FileOffsetStore(OffsetStore):
    """Offsets in a small JSON file, replaced as a whole each time so that a crash leaves the old or the new.

    The members of a group on one host may share the file: each puts only the partitions it saves over what is there
    (under a lock on `positions.json.lock`, which a crash frees), and sees what the one before it has saved of those
    that come to it. Where several members read the same partition, as in a broadcast, each needs a file of its own.

    >>> store = FileOffsetStore("positions.json")
    >>> store.save({TopicPartition("orders", 0): 42})
    >>> store.load([TopicPartition("orders", 0), TopicPartition("orders", 1)])
    {TopicPartition(topic='orders', partition=0): 42}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        known = self._read()
        return {partition: known[partition] for partition in partitions if partition in known}

    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._locked():
            self._replace({**self._read(), **offsets})
        self.stored(offsets)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all who save to this file. The lock's own file stays: the other one is replaced each time."""
        with open(self.path.with_name(self.path.name + ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, offsets: Mapping[TopicPartition, int]) -> None:
        topics: dict[str, dict[str, int]] = {}
        for partition, offset in sorted(offsets.items()):
            topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
        text = json.dumps({"format": FORMAT, "offsets": topics}, indent=1)
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
            return {
                TopicPartition(topic, int(index)): int(offset)
                for topic, offsets in stored["offsets"].items()
                for index, offset in offsets.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Starting from nowhere would repeat or lose records silently.
            raise OttlaError(
                f"{self.path} holds no offsets that can be read: {error}",
                "Remove the file to begin again where auto.offset.reset says.",
            ) from error
