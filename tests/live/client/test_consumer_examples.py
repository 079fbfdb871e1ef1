"""The consumer examples keep their guarantees when they are killed. Spec: D1."""

import contextlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Consumer, ConsumerRecord, FileOffsetStore, OttlaError, Producer, TopicPartition
from ottla.assignors.rack_by_user_data import RackByUserDataAssignor
from tests.support.processes.crashing import PROCESS, Step, crash_example, load_example
from tests.support.waiting import PATIENCE_S, eventually

EXAMPLES = Path(__file__).parents[3] / "examples"
COUNT = 100


def example(name: str) -> Any:
    return load_example(EXAMPLES / f"{name}.py")


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def filled(admin: Admin, broker: Any, topic: str) -> str:
    """A topic with two partitions and the numbers 0 to 99."""
    admin.create_topic(topic, partitions=2)
    write(broker, topic, range(COUNT))
    return topic


def write(broker: Any, topic: str, numbers: range, partitions: int = 2) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, f"{number}", partition=number % partitions)


def counted(marks: Path) -> Counter[int]:
    return Counter(map(int, marks.read_text().split())) if marks.exists() else Counter()


class Marking:
    """Appends each value to a file, as the killed process did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, record: ConsumerRecord) -> None:
        with open(self.path, "a") as file:
            file.write(f"{int(record.value or b'')}\n")


COMMIT = "ottla.client.blocking:Consumer.commit"


def spare(broker: Any, *, if_not: bool) -> None:
    """All cases run with Ottla; one of each kind with Apache Kafka, because it is the client that is killed."""
    if broker.name == "kafka" and not if_not:
        pytest.skip("one case of this kind is enough with Apache Kafka; all are tried with Ottla")


# --- at least once, at most once -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "repeats"),
    [(Step("after", PROCESS, 40), True), (Step("before", COMMIT), True), (Step("after", COMMIT), False)],
    ids=["in the middle", "before the commit", "after it"],
)
def test_at_least_once_repeats_records_after_a_crash_and_misses_none(
    broker: Any, filled: str, admin: Admin, tmp_path: Path, step: Step, repeats: bool
) -> None:
    """Spec: D1. After SIGKILL every number is processed, and those not committed twice."""
    spare(broker, if_not=step == Step("before", COMMIT))
    path, marks = EXAMPLES / "at_least_once.py", tmp_path / "marks"
    crash_example(path, step, broker.bootstrap, filled, filled, marks=marks)
    before = counted(marks)
    assert before
    assert max(before.values()) == 1
    admin.remove_members(filled)  # the group would wait for a killed member until its session ends
    example("at_least_once").run(broker.bootstrap, filled, filled, Marking(marks), until_end=True)
    after = counted(marks)
    assert set(after) == set(range(COUNT))
    assert sum(after.values()) - COUNT == (len(before) if repeats else 0)


@pytest.mark.parametrize(
    "step",
    [Step("before", COMMIT), Step("after", COMMIT), Step("before", PROCESS, 31)],
    ids=["before the commit", "after it", "in the middle"],
)
def test_at_most_once_misses_records_after_a_crash_and_repeats_none(
    broker: Any, filled: str, admin: Admin, tmp_path: Path, step: Step
) -> None:
    """Spec: D1. Exactly the records that were committed and not processed are missing, and none is processed twice."""
    spare(broker, if_not=step.call == PROCESS)
    path, marks = EXAMPLES / "at_most_once.py", tmp_path / "marks"
    crash_example(path, step, broker.bootstrap, filled, filled, marks=marks)
    committed = sum(offset.offset for offset in admin.list_group_offsets(filled).values())
    processed = sum(counted(marks).values())
    assert (committed == 0) is (step.when == "before" and step.call == COMMIT)
    admin.remove_members(filled)
    example("at_most_once").run(broker.bootstrap, filled, filled, Marking(marks), until_end=True)
    after = counted(marks)
    assert set(after.values()) <= {1}
    assert len(after) == COUNT - (committed - processed)


@pytest.mark.parametrize("way", ["automatic", "after_a_batch", "without_waiting", "by_partition"])
def test_every_way_to_commit_loses_nothing_when_killed(
    broker: Any, filled: str, admin: Admin, tmp_path: Path, way: str
) -> None:
    """Spec: D1, B7."""
    spare(broker, if_not=way == "by_partition")
    marks = tmp_path / "marks"
    crash_example(
        EXAMPLES / "commits.py",
        Step("after", PROCESS, 50),
        broker.bootstrap,
        filled,
        filled,
        function=way,
        marks=marks,
        **({"until_end": True} if way == "after_a_batch" else {}),
    )
    assert sum(counted(marks).values()) == 50
    admin.remove_members(filled)
    run = getattr(example("commits"), way)
    assert not run(broker.bootstrap, filled, filled, Marking(marks), until_end=True)
    assert set(counted(marks)) == set(range(COUNT))
    assert {p.partition: c.offset for p, c in admin.list_group_offsets(filled).items()} == {0: 50, 1: 50}


# --- listeners and assignors ---------------------------------------------------------------------------------------


def test_a_total_moves_with_its_partition(broker: Any, filled: str) -> None:
    """Spec: A9. The listener hands over the state of a partition."""
    module, group = example("rebalance_listener"), f"g-{filled}"
    first = module.run(broker.bootstrap, filled, group, until_end=True)
    write(broker, filled, range(COUNT, COUNT + 10))
    second = module.run(broker.bootstrap, filled, group, until_end=True)
    assert sum(first.values()) == sum(range(COUNT))
    assert sum(second.values()) == sum(range(COUNT + 10))


@pytest.mark.parametrize(("kind", "strategy"), [("Keeping", "sticky"), ("Forgetting", "cooperative-sticky")])
def test_state_of_partitions_that_do_not_move_is_kept(
    broker: Any, admin: Admin, topic: str, kind: str, strategy: str
) -> None:
    """Spec: A3, A9. When a second member joins, state of partitions that do not move is not rebuilt."""
    spare(broker, if_not=kind == "Keeping")
    admin.create_topic(topic, partitions=4)
    module, stops = example("sticky_listener"), [threading.Event(), threading.Event()]
    seen: list[Any] = []
    options = {"strategy": strategy, "seen": seen}
    arguments = (broker.bootstrap, topic, topic, getattr(module, kind))
    threads = [threading.Thread(target=module.run, args=arguments, kwargs={**options, "stop": e}) for e in stops]
    try:
        threads[0].start()
        eventually(lambda: bool(seen) and len(seen[0].state) == 4)
        threads[1].start()
        eventually(lambda: len(seen) == 2 and len(seen[0].state) == len(seen[1].state) == 2)
        kept = {partition.partition for partition in seen[0].state}
        assert {number: seen[0].built[number] for number in kept} == dict.fromkeys(kept, 1)
        stops[1].set()
        threads[1].join(PATIENCE_S)
        eventually(lambda: len(seen[0].state) == 4)
        assert seen[0].built == Counter({number: 1 if number in kept else 2 for number in range(4)})
    finally:
        for stop, thread in zip(stops, threads, strict=True):
            stop.set()
            if thread.ident is not None:
                thread.join(PATIENCE_S)


ASSIGNORS: dict[str, Callable[[Any], list[Any]]] = {
    "weighted": lambda module: [module.WeightedAssignor(1), module.WeightedAssignor(3)],
    "random": lambda module: ["ottla.assignors.random:RandomAssignor"] * 2,
    "rack by user data": lambda module: [RackByUserDataAssignor("rack-1"), RackByUserDataAssignor("rack-2")],
    "broadcast": lambda module: ["ottla.assignors.broadcast:BroadcastAssignor"] * 2,
}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_custom_assignor_works_in_a_live_group(broker: Any, admin: Admin, topic: str, name: str) -> None:
    """Spec: A6, A7."""
    spare(broker, if_not=name == "weighted")
    admin.create_topic(topic, partitions=8)
    module, stop = example("own_assignor"), threading.Event()
    assignors: list[Any] = ASSIGNORS[name](module)
    seen: list[dict[str, Any]] = [{}, {}]
    threads = [
        threading.Thread(target=module.run, args=(broker.bootstrap, topic, topic, assignor, stop, sight))
        for assignor, sight in zip(assignors, seen, strict=True)
    ]
    for thread in threads:
        thread.start()

    def shares() -> list[list[int]]:
        return [sight.get("partitions", []) for sight in seen]

    def is_stable() -> bool:
        described = admin.describe_groups([topic])[0]
        return described.state == "Stable" and len(described.members) == 2

    try:
        eventually(lambda: bool(admin.list_groups()) and topic in [g.group_id for g in admin.list_groups()])
        eventually(is_stable)
        if name == "broadcast":
            eventually(lambda: shares() == [list(range(8))] * 2)
            return
        # If the brokers have no racks, members with a rack share evenly.
        sizes = {"weighted": [2, 6], "rack by user data": [4, 4]}.get(name)
        eventually(lambda: sizes is None or [len(share) for share in shares()] == sizes)
        eventually(lambda: sorted(number for share in shares() for number in share) == list(range(8)))
        if name == "weighted":
            assert [assignor.summary for assignor in assignors] == ["2 of 8", "6 of 8"]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def test_partitions_go_to_the_member_in_their_leaders_rack(topic: str) -> None:
    """Spec: A6. The rack is sent as user data. Uses a separate broker, as the shared ones have no rack."""
    module, stop = example("own_assignor"), threading.Event()
    seen: list[dict[str, Any]] = [{}, {}]
    with Broker.embedded(settings={"broker.rack": "rack-2", "group.initial.rebalance.delay.ms": 0}) as racked:
        with Admin(bootstrap_servers=racked.bootstrap) as admin:
            admin.create_topic(topic, partitions=4)
        threads = [
            threading.Thread(
                target=module.run,
                args=(racked.bootstrap, topic, topic, RackByUserDataAssignor(f"rack-{number}"), stop, seen[number - 1]),
            )
            for number in (1, 2)
        ]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: [sight.get("partitions") for sight in seen] == [[], [0, 1, 2, 3]])
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)


# --- offsets of one's own ---------------------------------------------------------------------------------------------


SAVE = "ottla.client.stores.offset_store:FileOffsetStore.save"


@pytest.mark.parametrize(
    ("step", "repeats"),
    [(Step("after", PROCESS, 40), True), (Step("before", SAVE), True), (Step("after", SAVE), False)],
    ids=["in the middle", "before the file", "after it"],
)
def test_offsets_in_a_file_miss_nothing_when_killed(
    broker: Any, filled: str, admin: Admin, tmp_path: Path, step: Step, repeats: bool
) -> None:
    spare(broker, if_not=step.call == PROCESS)
    marks, positions = tmp_path / "marks", str(tmp_path / "positions.json")
    arguments = (broker.bootstrap, filled, filled, positions)
    crash_example(EXAMPLES / "offsets_in_file.py", step, *arguments, marks=marks)
    before = counted(marks)
    admin.remove_members(filled)
    example("offsets_in_file").run(*arguments, Marking(marks), until_end=True)
    after = counted(marks)
    assert set(after) == set(range(COUNT))
    assert sum(after.values()) - COUNT == (len(before) if repeats else 0)
    assert {p.partition: c.offset for p, c in admin.list_group_offsets(filled).items()} == {0: 50, 1: 50}, (
        "lag is visible"
    )


STORE = "ottla.client.stores.database_store:DatabaseOffsetStore"


def cached(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return sorted(int(value) for (value,) in connection.execute("select value from cache"))


def test_a_broadcast_member_is_killed_and_neither_loses_nor_repeats(
    broker: Any, filled: str, admin: Admin, tmp_path: Path
) -> None:
    """Spec: A7. SIGKILL at every step, while another member is ahead or behind."""
    spare(broker, if_not=False)
    path, group = EXAMPLES / "broadcast.py", f"g-{filled}"
    databases = {name: tmp_path / f"{name}.db" for name in ("ahead", "behind", "victim")}
    module = example("broadcast")
    # A member that has read ten records, and is gone from then on.
    behind = (broker.bootstrap, filled, group, "behind", str(databases["behind"]))
    module.run(*behind, until_records=10, max_poll_records=5)
    # A member that reads all the time, until it has seen everything.
    total = 2 * COUNT
    ahead = threading.Thread(
        target=module.run,
        args=(broker.bootstrap, filled, group, "ahead", str(databases["ahead"])),
        kwargs={"until_records": total},
    )
    ahead.start()
    arguments = (broker.bootstrap, filled, group, "victim", str(databases["victim"]))
    steps = [
        Step("before", f"{STORE}.save", 1),
        Step("after", f"{STORE}.save", 2),
        Step("before", f"{STORE}.stored", 2),
        Step("after", f"{STORE}.load", 1),
        Step("before", "ottla.client.blocking:Consumer.poll", 8),
    ]
    for number, step in enumerate(steps):
        crash_example(path, step, *arguments, max_poll_records=8)
        dead = [
            member.member_id for member in admin.describe_groups([group])[0].members if member.client_id == "victim"
        ]
        admin.remove_members(group, member_ids=dead)
        if number == 2:
            write(broker, filled, range(COUNT, total))  # while it is away
    assert 0 < len(cached(databases["victim"])) < total
    module.run(*arguments, until_end=True)
    ahead.join(PATIENCE_S)
    assert not ahead.is_alive()
    assert cached(databases["victim"]) == cached(databases["ahead"]) == list(range(total)), "each once"
    assert len(cached(databases["behind"])) == 10
    lags = {
        name: 2 * COUNT - sum(c.offset for c in admin.list_group_offsets(f"{group}.{name}").values())
        for name in databases
    }
    assert lags == {"ahead": 0, "victim": 0, "behind": total - 10}, "each member's progress is seen on its own"
    module.run(*behind, until_end=True)
    assert cached(databases["behind"]) == list(range(total))


def test_bad_records_go_to_the_dead_letter_topic(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    admin.create_topic(f"{topic}-aside", partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(9):
            producer.send(topic, "?" if number in (0, 4, 5) else json.dumps(number), key=f"{number}")
    seen: list[int] = []
    run = example("skip_bad_records").run
    run(broker.bootstrap, topic, topic, f"{topic}-aside", seen.append, until_end=True)
    assert seen == [1, 2, 3, 6, 7, 8]
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(f"{topic}-aside", 0)])
        aside: list[ConsumerRecord] = []

        def all_are_there() -> bool:
            aside.extend(consumer.poll(500))
            return len(aside) == 3

        eventually(all_are_there)
    assert [(r.key, dict(r.headers)["offset"]) for r in aside] == [(b"0", b"0"), (b"4", b"4"), (b"5", b"5")]


def test_a_corrupt_offset_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = FileOffsetStore(path)
    store.save({TopicPartition("t", 0): 5})
    store.save({TopicPartition("t", 1): 7})
    everything = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}
    assert FileOffsetStore(path).load([*everything, TopicPartition("u", 0)]) == everything
    path.write_text(path.read_text()[:-3])
    with pytest.raises(OttlaError, match=r"offsets\.json is not a valid offsets file"):
        FileOffsetStore(path).load(everything)
