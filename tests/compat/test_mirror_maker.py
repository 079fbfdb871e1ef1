"""Apache Kafka's MirrorMaker 2 between Ottla and Apache Kafka, exactly once and with its groups. Spec: C2, E9."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla import Admin, Broker, Consumer, NewTopic, Producer
from tests.support.processes.oracle import RealKafka, die_with_parent, extras_directory, oracle_available
from tests.support.waiting import eventually

JARS = extras_directory() / "mirror"
RECORDS = 1_000
PROPERTIES = """\
clusters = source, target
source.bootstrap.servers = {source}
target.bootstrap.servers = {target}
source->target.enabled = true
target->source.enabled = false
source->target.topics = orders
source->target.groups = readers
# Topics keep their names, so that clients only need another address.
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
target.exactly.once.source.support = enabled
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.topics.interval.seconds = 5
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
"""


@contextmanager
def mirroring(source: str, target: str, directory: Path) -> Iterator[Path]:
    """MirrorMaker in its own process; the path of its log."""
    properties, log = directory / "mm2.properties", directory / "mm2.log"
    properties.write_text(PROPERTIES.format(source=source, target=target))
    command = ["java", "-Xmx512m", "-cp", f"{JARS}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
    with (
        open(log, "wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=die_with_parent) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()


@pytest.fixture(params=["ottla to apache", "apache to ottla"])
def clusters(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    reason = oracle_available()
    if reason is None and not JARS.is_dir():
        reason = "MirrorMaker's jars are not there (./run setup-extras fetches them)"
    if reason is not None:
        pytest.skip(reason)
    with Broker.embedded() as ottla, RealKafka() as kafka:
        yield (
            (ottla.bootstrap, kafka.bootstrap)
            if request.param.startswith("ottla")
            else (kafka.bootstrap, ottla.bootstrap)
        )


@pytest.mark.long
@pytest.mark.oracle
def test_mirror_maker_moves_records_and_groups(clusters: tuple[str, str], tmp_path: Path) -> None:
    source, target = clusters
    with Admin(bootstrap_servers=source) as admin:
        admin.create_topics([NewTopic("orders", 2, 1)])
    with Producer(bootstrap_servers=source) as producer:
        for number in range(RECORDS):
            producer.send("orders", str(number).encode(), key=str(number % 10).encode(), headers=[("h", b"1")])
    with Consumer(bootstrap_servers=source, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.poll(1_000))
        consumer.commit()
    with mirroring(source, target, tmp_path) as log, Admin(bootstrap_servers=target) as admin:
        eventually(lambda: "orders" in {topic.name for topic in admin.list_topics()}, 120)
        eventually(has_all_offsets(admin), 120)
        assert "Kafka MirrorMaker" in log.read_text()
    with Consumer(bootstrap_servers=target, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([("orders", 0), ("orders", 1)])
        values = []
        while not consumer.is_at_end():
            values += [int(record.value or b"-1") for record in consumer.poll(1_000)]
    assert sorted(values) == list(range(RECORDS))


def has_all_offsets(admin: Admin) -> Callable[[], bool]:
    """Whether the group's offsets in the target are near the end: MirrorMaker translates them to a record before it."""

    def check() -> bool:
        committed = admin.list_group_offsets("readers")
        return sum(each.offset for each in committed.values()) >= RECORDS

    return check
