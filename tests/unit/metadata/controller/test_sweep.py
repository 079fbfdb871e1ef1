"""A pass over all partitions with a limited number of changes per commit: linear, complete, and repeatable."""

from ottla.metadata.controller.decisions import Put
from ottla.metadata.controller.sweep import Sweep
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage


def cluster(topics: int, partitions: int) -> ClusterImage:
    made = {}
    for number in range(topics):
        states = tuple(PartitionImage(index, 1, 0, 0, (1, 2), (1, 2)) for index in range(partitions))
        made[f"t{number}"] = TopicImage(f"t{number}", number.to_bytes(16), states, {})
    return ClusterImage(topics=made)


def committed(image: ClusterImage, changes: list[Put]) -> ClusterImage:
    """Each change made broker 2 the leader."""
    topics = dict(image.topics)
    for put in changes:
        name, index = put.key.split("/")
        states = list(topics[name].partitions)
        states[int(index)] = states[int(index)]._replace(leader=2)
        topics[name] = topics[name]._replace(partitions=tuple(states))
    return ClusterImage(topics=topics)


class Looking:
    """Changes the leader of every partition to broker 2, and counts the partitions it was shown."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, topic: TopicImage, partition: PartitionImage) -> Put | None:
        self.looks += 1
        return None if partition.leader == 2 else Put(f"{topic.name}/{partition.index}", b"")


def test_every_partition_is_changed_and_looked_at_about_twice() -> None:
    for topics, partitions in ((1, 300), (30, 10), (300, 1)):
        image, sweep, find = cluster(topics, partitions), Sweep(), Looking()
        total = 0
        while changes := sweep.changes(image, "same", find, 10):
            total += len(changes)
            image = committed(image, changes)
        assert total == 300
        assert find.looks <= 4 * 300, "a commit must not make it start from the beginning"


def test_changes_of_a_commit_that_failed_are_found_again() -> None:
    image, sweep, find = cluster(3, 4), Sweep(), Looking()
    first = sweep.changes(image, "same", find, 6)
    assert sweep.changes(image, "same", find, 6) == first
    second = sweep.changes(committed(image, first), "same", find, 6)
    assert {put.key for put in first} | {put.key for put in second} == {f"t{t}/{p}" for t in range(3) for p in range(4)}


def test_another_situation_starts_from_the_beginning() -> None:
    image, sweep, find = cluster(2, 5), Sweep(), Looking()
    changes = sweep.changes(image, "one broker is gone", find, 8)
    sweep.changes(committed(image, changes), "one broker is gone", find, 1)
    # What was settled before may have to be changed now.
    assert sweep.changes(image, "another one is gone", find, 3)[0].key == "t0/0"


def test_topics_that_were_deleted_meanwhile_are_skipped() -> None:
    image, sweep, find = cluster(2, 2), Sweep(), Looking()
    assert len(sweep.changes(image, "same", find, 1)) == 1
    assert sweep.changes(ClusterImage(), "same", find, 1) == []
