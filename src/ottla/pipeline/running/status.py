"""The status of a pipeline from outside: its last batches, its lag, and the process that runs it."""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.checks import unsigned_from_text
from ottla.client.core.guarantees import Guarantee
from ottla.errors import KafkaError, OttlaError
from ottla.pipeline.definition.model import DatabaseSink, Output, Pipeline, TopicSink, dead_letter_query
from ottla.pipeline.definition.options import sink_options
from ottla.pipeline.running.lag import admin_settings, end_offsets, lag_between
from ottla.pipeline.running.progress import positions_in
from ottla.pipeline.running.state import RunState, StateDirectory
from ottla.spark.sink.checkpoints import local_path

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.spark.sink.ledger import Names


@dataclass
class QueryStatus:
    """One query of a pipeline."""

    name: str
    sink: str
    guarantee: str
    group: str
    last_batch: int | None = None
    """The last batch in Spark's commit log."""
    committed_ms: int | None = None
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag: dict[str, int | None] = field(default_factory=dict)
    """Records behind the end, by topic; None if the brokers did not answer."""
    ledger_batch: int | None = None
    """For a database: the last batch in its ledger."""
    ledger_rows: int | None = None
    decided_batch: int | None = None
    """For a topic that is written exactly once: the last batch that was decided."""
    held_ms: int | None = None
    """How long the prepared rows of that batch blocked read_committed readers before it was decided."""


@dataclass
class Status:
    """The status of a pipeline."""

    name: str
    file: str
    checkpoint: str
    is_running: bool
    phase: str
    pid: int | None = None
    driver_pid: int | None = None
    host: str | None = None
    since_ms: int | None = None
    heartbeat_ms: int | None = None
    restarts: int = 0
    last_failure: str | None = None
    bootstrap: str | None = None
    queries: list[QueryStatus] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is unknown, and why."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def status_of(made: Pipeline, bootstrap: str | None) -> Status:
    """Reads the checkpoint and the state of the run, and queries the brokers and the databases."""
    directory = StateDirectory(made)
    run, is_running = directory.read(), directory.is_locked()
    status = Status(
        name=made.name,
        file=str(Path(made.file).absolute()),
        checkpoint=made.checkpoint,
        is_running=is_running,
        phase=_phase(run, is_running),
        bootstrap=bootstrap or made.bootstrap or (run.bootstrap if run is not None else None),
    )
    if run is not None:
        status.heartbeat_ms, status.restarts, status.last_failure = run.updated_ms, run.restarts, run.last_failure
        status.host, status.since_ms = run.host, run.started_ms
        if is_running:
            status.pid, status.driver_pid = run.pid, run.driver_pid
    status.queries = [_query(made, output) for output in made.queries.values()]
    brokers_are_stopped = run is not None and run.embedded_broker and not is_running and bootstrap is None
    if brokers_are_stopped or status.bootstrap is None:
        status.notes.append("no lag: the embedded broker runs only while the pipeline runs")
    else:
        _add_lag(made, status)
        _add_decisions(made, status)
    return status


def _phase(run: RunState | None, is_running: bool) -> str:
    if run is None:
        return "running" if is_running else "never run"
    if is_running or run.phase in ("stopped", "ended", "failed"):
        return run.phase
    return "died"  # it exited without writing a final phase


def _query(made: Pipeline, output: Output) -> QueryStatus:
    status = QueryStatus(output.name, output.sink.shown, output.guarantee, made.group_of(output.name))
    directory = local_path(made.checkpoint)
    if directory is not None:
        _add_checkpoint(status, directory / output.name)
    if isinstance(output.sink, DatabaseSink):
        _add_ledger(made, status, output.sink)
    return status


def _add_checkpoint(status: QueryStatus, directory: Path) -> None:
    """Spark's checkpoint: `commits/N` exists once batch N is done; `offsets/N` has its end offsets."""
    names = [path.name for path in (directory / "commits").glob("*")]
    batches = [batch for name in names if (batch := unsigned_from_text(name)) is not None]
    if not batches:
        return
    status.last_batch = max(batches)
    with contextlib.suppress(OSError):
        status.committed_ms = int((directory / "commits" / str(status.last_batch)).stat().st_mtime * 1000)
        lines = (directory / "offsets" / str(status.last_batch)).read_text(encoding="utf-8").splitlines()
        status.positions = positions_in(lines[2:])


def _add_ledger(made: Pipeline, status: QueryStatus, sink: DatabaseSink) -> None:
    from ottla.spark.database.connections import connect
    from ottla.spark.database.options import DatabaseOptions

    options = DatabaseOptions.parse(sink_options(made, made.outputs[status.name], "127.0.0.1:9092"))
    if sink.url.startswith("sqlite:///") and not Path(sink.url.removeprefix("sqlite:///")).exists():
        return  # connecting would create it
    from ottla.spark.database.ledger import entries

    with contextlib.suppress(OttlaError), contextlib.closing(connect(options)) as database:
        found = entries(database, options)
        if found:
            status.ledger_batch, status.ledger_rows = found[0].batch_id, found[0].rows


def _add_decisions(made: Pipeline, status: Status) -> None:
    """The last decisions of topic sinks."""
    from ottla.client.blocking import Admin
    from ottla.spark.sink.clients import clients, run
    from ottla.spark.sink.options import SinkOptions

    assert status.bootstrap is not None
    directory = local_path(made.checkpoint)
    wanted = {
        output.name: SinkOptions.parse(sink_options(made, output, status.bootstrap), streaming=True)
        for output in made.queries.values()
        if isinstance(output.sink, TopicSink) and output.guarantee == Guarantee.EXACTLY_ONCE
    }
    if directory is None or not wanted or any("no lag" in note for note in status.notes):
        return
    try:
        with Admin(admin_settings(status.bootstrap, made.kafka)) as admin:
            there = {topic.name for topic in admin.list_topics()}
        for query in status.queries:
            options = wanted.get(query.name)
            names = None if options is None else _sink_names(options.sink_name, directory / query.name)
            if options is None or names is None or names.decisions not in there:
                continue  # reading the state would create the topic
            decision = run(clients(options).read_state(names)).decision
            if decision is not None:
                query.decided_batch, query.held_ms = decision.batch, decision.held_ms
    except (KafkaError, OttlaError) as error:
        status.notes.append(f"no decisions: {error}")


def _sink_names(sink_name: str | None, checkpoint: Path) -> "Names | None":
    """The names that a sink uses: the user's, else derived from the query's id, which is in the checkpoint."""
    from ottla.spark.sink.ledger import Names
    from ottla.spark.sink.options import default_sink_name

    if sink_name is not None:
        return Names(sink_name)
    try:
        return Names(default_sink_name(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]))
    except (OSError, ValueError, KeyError):
        return None


def _topics_of(admin: "Admin", made: Pipeline) -> dict[str, list[str]]:
    """The topics of each source; for a pattern the topics that match it now."""
    patterns = any(source.pattern for source in made.sources.values())
    there = [topic.name for topic in admin.list_topics()] if patterns else []
    return {
        name: [topic for topic in there if re.fullmatch(source.pattern, topic)]
        if source.pattern
        else list(source.topics)
        for name, source in made.sources.items()
    }


def _read_by(made: Pipeline, query: str, positions: Collection[str], sources: Mapping[str, list[str]]) -> list[str]:
    """The topics of the sources that a query has begun to read; before that, of all sources that it may read."""
    letters = {dead_letter_query(source): source.name for source in made.dead_letter_sources}
    own = [sources[letters[query]]] if query in letters else list(sources.values())
    begun = [topics for topics in own if not positions or not set(topics).isdisjoint(positions)]
    return list(dict.fromkeys(topic for topics in begun for topic in topics))


def _add_lag(made: Pipeline, status: Status) -> None:
    from ottla.client.blocking import Admin

    assert status.bootstrap is not None
    try:
        with Admin(admin_settings(status.bootstrap, made.kafka)) as admin:
            sources = _topics_of(admin, made)
            ends = end_offsets(admin, list(dict.fromkeys(topic for topics in sources.values() for topic in topics)))
            for query in status.queries:
                shown = admin.list_group_offsets(query.group)
                positions: dict[str, dict[str, int]] = {
                    topic: dict(offsets) for topic, offsets in query.positions.items()
                }
                for partition, committed in shown.items():
                    positions.setdefault(partition.topic, {})[str(partition.partition)] = committed.offset
                for topic in _read_by(made, query.name, positions, sources):
                    query.lag[topic] = lag_between({topic: positions.get(topic, {})}, ends)
    except (KafkaError, OttlaError) as error:
        status.notes.append(f"no lag: the brokers at {status.bootstrap} do not answer ({error})")
