"""New images are applied in slices, and partitions that could not be opened are opened again."""

import errno
import gc
import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.replication.applying import FROZEN_TOGETHER, SLICE_PARTITIONS
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition
from tests.support.worlds.data_world import DataWorld, topic_id_of

MANY = 5 * SLICE_PARTITIONS
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def platter() -> SimPlatter:
    return SimPlatter(SimLoop())


@pytest.fixture
def world(platter: SimPlatter) -> DataWorld:
    return DataWorld("/data", disk=platter.disk(), loop=platter.loop)


def image_with(world: DataWorld, name: str, partitions: int, generation: int = 0) -> ClusterImage:
    placed = tuple(PartitionImage(index, 0, 0, 0, (0,), (0,)) for index in range(partitions))
    topic_id = topic_id_of(name, generation)
    topics = dict(world.image.topics) | {name: TopicImage(name, topic_id, placed, {})}
    names = {topic.topic_id: topic.name for topic in topics.values()}
    return replace(world.image, version=world.image.version + 1, topics=topics, topic_names=names)


def without(image: ClusterImage, name: str) -> ClusterImage:
    topics = {each: topic for each, topic in image.topics.items() if each != name}
    return replace(image, version=image.version + 1, topics=topics, topic_names={})


def begin(world: DataWorld, image: ClusterImage) -> Any:
    """Applies the first slice of an image."""
    world.image = image
    unfinished = world.replicas.apply(image)
    assert unfinished is not None
    return unfinished


def opened(world: DataWorld) -> int:
    return sum(1 for _ in world.replicas.replicas())


def error_of(world: DataWorld, topic: str, partition: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        world.replicas.leader(TopicPartition(topic, partition))
    return caught.value.code


def directories(world: DataWorld) -> list[str]:
    return [name for name in world.disk.list(world.directory) if "-" in name and "checkpoint" not in name]


def remount(world: DataWorld, platter: SimPlatter) -> None:
    """The machine starts again: locks of the last run are gone."""
    platter.locks.clear()
    world.disk = platter.disk()


# -- slices --


def test_many_partitions_are_opened_in_slices_with_turns_for_others_in_between(world: DataWorld) -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(opened(world))
        if seen[-1] < MANY:
            world.loop.call_soon(look)

    unfinished = begin(world, image_with(world, "many", MANY))
    world.loop.call_soon(look)
    world.run(unfinished)
    assert seen[0] <= 2 * SLICE_PARTITIONS
    assert all(after - before <= SLICE_PARTITIONS for before, after in pairwise(seen))
    assert opened(world) == MANY


def test_a_few_partitions_are_opened_at_once(world: DataWorld) -> None:
    assert world.replicas.apply(image_with(world, "few", SLICE_PARTITIONS - 1)) is None
    assert opened(world) == SLICE_PARTITIONS - 1


def test_a_partition_that_is_not_open_yet_is_not_led_here_and_an_open_one_is_served(world: DataWorld) -> None:
    unfinished = begin(world, image_with(world, "many", MANY))
    assert error_of(world, "many", MANY - 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(world, "many", MANY) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.append("many", "a")
    world.run(unfinished)
    world.append("many", "a", partition=MANY - 1)
    assert world.log("many").log_end_offset == 1


def test_a_newer_image_replaces_one_that_is_not_finished(world: DataWorld) -> None:
    first = begin(world, image_with(world, "many", MANY))
    second = begin(world, image_with(world, "more", MANY))
    assert first is second, "all wait for the newest image"
    world.run(second)
    assert opened(world) == 2 * MANY


def test_a_topic_deleted_while_it_is_created_leaves_nothing(world: DataWorld) -> None:
    begin(world, image_with(world, "many", MANY))
    world.publish(without(world.image, "many"))
    world.wait(120_000)
    assert directories(world) == []
    assert not world.replicas.topics
    assert not world.replicas.topics_by_id


def test_a_topic_created_again_while_the_first_one_is_created_gets_its_own_logs(world: DataWorld) -> None:
    begin(world, image_with(world, "many", MANY))
    world.append("many", "of the first topic")
    world.publish(image_with(world, "many", MANY, generation=1))
    assert {replica.log.topic_id for replica in world.replicas.replicas()} == {topic_id_of("many", 1)}
    assert all(replica.log.log_end_offset == 0 for replica in world.replicas.replicas())
    assert opened(world) == MANY


def test_a_deleted_topic_is_gone_at_once_and_its_directories_are_renamed_in_slices(world: DataWorld) -> None:
    world.publish(image_with(world, "many", MANY))
    unfinished = begin(world, without(world.image, "many"))
    assert error_of(world, "many") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sum(name.endswith("-delete") for name in directories(world)) <= SLICE_PARTITIONS
    world.run(unfinished)
    assert all(name.endswith("-delete") for name in directories(world))


def test_a_stop_during_a_deletion_leaves_no_stray_directories(world: DataWorld, platter: SimPlatter) -> None:
    world.publish(image_with(world, "many", MANY))
    begin(world, without(world.image, "many"))
    world.stop()
    assert all(name.endswith("-delete") for name in directories(world))
    remount(world, platter)
    world.start()
    world.wait(1_000)
    assert directories(world) == []


def test_a_stop_does_not_wait_for_a_creation(world: DataWorld) -> None:
    unfinished = begin(world, image_with(world, "many", MANY))
    world.replicas.begin_stop()
    assert unfinished.done(), "its CreateTopics is answered"
    world.wait(1_000)
    assert opened(world) <= SLICE_PARTITIONS


def test_an_unexpected_error_ends_the_wait_and_the_next_image_is_applied(
    world: DataWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(image_with(world, "many", MANY))
    unfinished = begin(world, without(world.image, "many"))
    with monkeypatch.context() as patch:
        patch.setattr(world.replicas.maintenance, "delete", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            world.replicas.apply(world.image)
    assert unfinished.done()
    world.topic("orders")
    world.append("orders", "a")


def test_a_start_after_a_stop_during_a_creation_opens_the_rest(world: DataWorld, platter: SimPlatter) -> None:
    begin(world, image_with(world, "many", MANY))
    world.stop()
    assert len(directories(world)) < MANY
    remount(world, platter)
    world.start()
    assert opened(world) == MANY


def test_subscribers_get_an_image_when_all_its_partitions_are_open(world: DataWorld) -> None:
    seen = []
    world.replicas.when_applied(lambda image: seen.append((image.version, opened(world))))
    unfinished = begin(world, image_with(world, "many", MANY))
    assert seen == []
    world.run(unfinished)
    assert seen == [(world.image.version, MANY)]


def test_changed_settings_reach_every_partition_even_if_a_newer_image_follows(world: DataWorld) -> None:
    world.publish(image_with(world, "many", MANY))
    image = image_with(world, "many", MANY)
    changed = image.topics["many"]._replace(configs={"retention.ms": "7"})
    begin(world, replace(image, topics=dict(image.topics) | {"many": changed}))
    world.publish(image_with(world, "other", 1))
    assert {replica.log.config.retention_ms for replica in world.replicas.topics["many"].replicas.values()} == {7}


def test_the_objects_of_many_partitions_are_not_searched_for_garbage_and_are_freed_without_it(world: DataWorld) -> None:
    gc.unfreeze()
    gc.collect()
    try:
        world.topic("many", partitions=FROZEN_TOGETHER + 1)
        assert gc.get_freeze_count() > FROZEN_TOGETHER
        gc.disable()
        world.delete_topic("many")
        gc.unfreeze()
        assert gc.collect() < FROZEN_TOGETHER, "a deleted log has no reference cycles"
    finally:
        gc.enable()
        gc.unfreeze()


def test_topics_that_come_and_go_do_not_keep_garbage_alive(world: DataWorld) -> None:
    """Each freeze keeps the garbage of its moment for good, for example closed connections."""
    gc.unfreeze()
    gc.collect()
    try:
        frozen_before = gc.get_freeze_count()
        for _ in range(4):
            world.topic("many", partitions=FROZEN_TOGETHER // 2)
            world.delete_topic("many")
        assert gc.get_freeze_count() == frozen_before
        world.topic("more", partitions=FROZEN_TOGETHER + 1)
        assert gc.get_freeze_count() > frozen_before
        world.delete_topic("more")
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()


# -- opening again --


def test_a_partition_that_could_not_be_opened_is_served_again_without_a_restart(
    world: DataWorld, platter: SimPlatter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.replication")
    platter.fail_next("open", errno.EMFILE, times=4)
    world.topic("orders")
    assert error_of(world, "orders") == ErrorCode.KAFKA_STORAGE_ERROR
    world.wait(60_000)
    world.append("orders", "a")
    assert world.log("orders").log_end_offset == 1
    said = [record.message for record in caplog.records if "offline" in record.message]
    assert len(said) == 2, "once when it went offline, once when it came back"
    assert said[0].startswith("partition orders-0: offline, will be retried: [Errno 24]")
    assert said[1] == "partition orders-0: was offline, is served again"


def test_the_coordinators_learn_of_a_partition_that_was_opened_later(world: DataWorld, platter: SimPlatter) -> None:
    seen = []
    world.replicas.when_applied(lambda image: seen.append(opened(world)))
    platter.fail_next("open", errno.EMFILE)
    world.topic("orders")
    world.wait(2_000)
    assert seen == [0, 1]


def test_opening_again_is_tried_less_and_less_often_but_at_least_once_a_minute(
    world: DataWorld, platter: SimPlatter
) -> None:
    platter.fail_next("make_directory", errno.ENOSPC, times=1_000)
    world.topic("orders")
    attempts = []
    for _ in range(300):
        before = len(platter.failures["make_directory"])
        world.wait(1_000)
        if len(platter.failures["make_directory"]) < before:
            attempts.append(round(world.loop.time()))
    gaps = [after - before for before, after in pairwise([0, *attempts])]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_partition_of_a_deleted_topic_is_not_opened_again(world: DataWorld, platter: SimPlatter) -> None:
    platter.fail_next("open", errno.EMFILE)
    world.topic("orders")
    world.delete_topic("orders")
    assert world.replicas.offline == {}
    world.wait(120_000)
    assert world.disk.list("/data") == [".lock"]


def test_a_topic_created_again_does_not_wait_for_the_back_off_of_the_old_one(
    world: DataWorld, platter: SimPlatter
) -> None:
    platter.fail_next("open", errno.EMFILE)
    world.topic("orders")
    world.topic("orders", generation=1)
    assert world.log("orders").topic_id == topic_id_of("orders", 1)


def test_a_log_that_could_not_be_loaded_at_the_start_is_loaded_later_with_its_records(
    world: DataWorld, platter: SimPlatter
) -> None:
    world.topic("orders")
    world.append("orders", "a", "b")
    world.stop()
    remount(world, platter)
    platter.fail_next("pread", errno.EMFILE, times=2)
    world.start()
    assert error_of(world, "orders") == ErrorCode.KAFKA_STORAGE_ERROR
    world.wait(60_000)
    assert world.log("orders").log_end_offset == 2
    world.append("orders", "c")
    assert world.log("orders").log_end_offset == 3


def test_a_log_whose_topic_id_cannot_be_restored_is_offline_and_no_stray(world: DataWorld, platter: SimPlatter) -> None:
    world.topic("orders")
    world.append("orders", "precious")
    world.stop()
    remount(world, platter)
    world.disk.remove("/data/orders-0/partition.metadata")
    platter.fail_next("write_file", errno.ENOSPC)
    world.start()
    assert error_of(world, "orders") == ErrorCode.KAFKA_STORAGE_ERROR
    world.wait(2_000)
    assert world.log("orders").log_end_offset == 1


def test_a_full_disk_stops_creations_and_new_segments_only_while_it_is_full(
    world: DataWorld, platter: SimPlatter
) -> None:
    world.topic("old", configs={"segment.bytes": "1048576"})
    world.append("old", b"x" * 700_000)
    platter.capacity_bytes = platter.used_bytes() + 10
    world.topic("new")
    assert error_of(world, "new") == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        world.append("old", b"x" * 700_000)
    platter.capacity_bytes = None
    world.append("old", b"x" * 700_000)
    assert len(world.log("old").segments) == 2
    world.wait(2_000)
    world.append("new", "a")
    assert world.log("new").log_end_offset == 1
