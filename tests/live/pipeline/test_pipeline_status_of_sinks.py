"""`ottla pipeline status` of sinks, from their decisions on the brokers."""

import json
import uuid
from pathlib import Path

import pytest

from ottla.client.blocking import Admin
from ottla.pipeline.definition.loading import load
from ottla.pipeline.running.status import QueryStatus, status_of
from tests.support.processes.oracle import Target
from tests.support.worlds.sink_stage import SinkStage

FILE = """\
name: copy
source:
  topic: {source}
  schema: id bigint
sql: select * from `{source}`
sink:
  topic: {target}
checkpoint: {checkpoint}
"""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout for users is short; the brokers of tests may be slow."""
    monkeypatch.setattr(
        "ottla.pipeline.running.status.admin_settings", lambda bootstrap, _: {"bootstrap.servers": bootstrap}
    )


@pytest.fixture
def stage(ottla: Target, topic: str) -> SinkStage:
    """A query's sink under its default name."""
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.create_topic(f"{topic}.in")
    return SinkStage(ottla.bootstrap, topic, sinkName=f"ottla-sink-{uuid.uuid4()}")


def look(stage: SinkStage, place: Path) -> QueryStatus:
    checkpoint = place / "checkpoint" / "copy"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": stage.sink.removeprefix("ottla-sink-")}))
    file = place / "copy.yaml"
    file.write_text(FILE.format(source=f"{stage.topic}.in", target=stage.topic, checkpoint=place / "checkpoint"))
    status = status_of(load(file), stage.bootstrap)
    assert not status.notes
    (query,) = status.queries
    assert query.name == "copy"
    return query


def test_status_shows_the_last_decision_and_how_long_readers_were_blocked(stage: SinkStage, tmp_path: Path) -> None:
    run = stage.start()
    for batch in range(3):
        run.commit(batch, run.write(batch, 0, ["a", "b"]))
    query = look(stage, tmp_path)
    assert query.decided_batch == 2
    assert query.held_ms is not None
    assert 0 <= query.held_ms < 60_000


def test_the_status_of_a_query_that_never_wrote_creates_no_topic(stage: SinkStage, tmp_path: Path) -> None:
    query = look(stage, tmp_path)
    assert (query.decided_batch, query.held_ms) == (None, None)
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        assert stage.names.decisions not in {topic.name for topic in admin.list_topics()}
