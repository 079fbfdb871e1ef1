"""One pass over all partitions of a cluster, with a limited number of changes per commit. Pure.

Every commit creates a new image, and the search for the next changes must not start from the first partition again: to
elect leaders for 100,000 partitions, a hundred per commit, it would look at fifty million.
"""

from collections.abc import Callable

from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage

Find = Callable[[TopicImage, PartitionImage], Put | None]
"""What to change in a partition; None: nothing."""


class Sweep:
    """Remembers its position, and restarts when the situation changes."""

    def __init__(self) -> None:
        self._situation: object = None
        self._left: list[tuple[str, int]] = []
        """Topics to look at, the next one last, each from a partition on."""

    def changes(self, image: ClusterImage, situation: object, find: Find, limit: int) -> list[Put]:
        """The next changes, at most `limit`. Partitions that are changed now are looked at again the next time: the
        commit may fail, and then the same changes are found again.

        `situation` is everything that `find` depends on, apart from the partition and its topic.
        """
        if not self._left or self._situation != situation:
            self._situation = situation
            self._left = [(name, 0) for name in reversed(list(image.topics))]
        found: list[Put] = []
        again: list[tuple[str, int]] = []
        while self._left and len(found) < limit:
            name, start = self._left.pop()
            topic = image.topics.get(name)
            if topic is None:
                continue
            first = None
            for partition in topic.partitions[start:]:
                change = find(topic, partition)
                if change is not None:
                    first = partition.index if first is None else first
                    found.append(change)
                    if len(found) == limit:
                        break
            if first is not None:
                again.append((name, first))
        self._left += reversed(again)
        return found
