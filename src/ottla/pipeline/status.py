"""What can be said of a pipeline from outside: its last batches, how far behind it is, who runs it."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.errors import KafkaError, OttlaError
from ottla.pipeline.lag import admin_settings, end_offsets, lag_between
from ottla.pipeline.model import DatabaseSink, Pipeline, TopicSink
from ottla.pipeline.options import sink_options
from ottla.pipeline.progress import positions_in
from ottla.pipeline.state import RunState, StateDirectory, local_path

if TYPE_CHECKING:
    from ottla.spark.ledger import Names


@dataclass
class QueryStatus:
    """One query of a pipeline."""

    name: str
    sink: str
    guarantee: str
    group: str
    last_batch: int | None = None
    """The last batch that Spark has noted as committed."""
    committed_ms: int | None = None
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag: dict[str, int | None] = field(default_factory=dict)
    """Records behind the end, by topic; None where the brokers could not be asked."""
    ledger_batch: int | None = None
    """For a database: the last batch that the database itself says it has."""
    ledger_rows: int | None = None
    decided_batch: int | None = None
    """For a topic that is written exactly once: the last batch that was decided."""
    held_ms: int | None = None
    """How long the finished rows of that batch held readers back before it was decided."""


@dataclass
class Status:
    """A pipeline, seen from outside."""

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
    """What could not be found out, and why."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def status_of(made: Pipeline, bootstrap: str | None) -> Status:
    """Looks at the checkpoint, the run's own notes, the brokers and the databases."""
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
    status.queries = [_query(made, name) for name in made.query_names()]
    brokers_are_gone = run is not None and run.embedded_broker and not is_running and bootstrap is None
    if brokers_are_gone or status.bootstrap is None:
        status.notes.append("no lag: the embedded broker runs with the pipeline")
    else:
        _add_lag(made, status)
        _add_decisions(made, status)
    return status


def _phase(run: RunState | None, is_running: bool) -> str:
    if run is None:
        return "running" if is_running else "never run"
    if is_running or run.phase in ("stopped", "ended", "failed"):
        return run.phase
    return "died"  # its last word was not that it would end


def _query(made: Pipeline, name: str) -> QueryStatus:
    output = made.outputs.get(name)
    if output is None:
        source = next(source for source in made.dead_letter_sources if name.endswith(f".{source.name}"))
        status = QueryStatus(name, f"topic {source.dead_letter_topic}", "exactly-once", made.group_of(name))
    else:
        status = QueryStatus(name, output.sink.shown, output.guarantee, made.group_of(name))
    directory = local_path(made.checkpoint)
    if directory is not None:
        _add_checkpoint(status, directory / name)
    if output is not None and isinstance(output.sink, DatabaseSink):
        _add_ledger(made, status, output.sink)
    return status


def _add_checkpoint(status: QueryStatus, directory: Path) -> None:
    """Spark's own notes: `commits/N` is there once batch N is done; `offsets/N` says how far it went."""
    batches = [int(path.name) for path in (directory / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return
    status.last_batch = max(batches)
    with contextlib.suppress(OSError):
        status.committed_ms = int((directory / "commits" / str(status.last_batch)).stat().st_mtime * 1000)
        lines = (directory / "offsets" / str(status.last_batch)).read_text(encoding="utf-8").splitlines()
        status.positions = positions_in(lines[2:])


def _add_ledger(made: Pipeline, status: QueryStatus, sink: DatabaseSink) -> None:
    from ottla.spark.database_connections import connect
    from ottla.spark.database_options import DatabaseOptions

    options = DatabaseOptions.parse(sink_options(made, made.outputs[status.name], "127.0.0.1:9092"))
    if sink.url.startswith("sqlite:///") and not Path(sink.url.removeprefix("sqlite:///")).exists():
        return  # to look must not make it
    from ottla.spark.database_ledger import entries

    with contextlib.suppress(OttlaError), contextlib.closing(connect(options)) as database:
        found = entries(database, options)
        if found:
            status.ledger_batch, status.ledger_rows = found[0].batch_id, found[0].rows


def _add_decisions(made: Pipeline, status: Status) -> None:
    """What the sinks of topics have on record."""
    from ottla.client.blocking import Admin
    from ottla.spark.sink_clients import clients, run
    from ottla.spark.sink_options import SinkOptions

    assert status.bootstrap is not None
    directory = local_path(made.checkpoint)
    outputs = [made.outputs[query.name] for query in status.queries if query.name in made.outputs]
    wanted = {
        output.name: SinkOptions.parse(sink_options(made, output, status.bootstrap), streaming=True)
        for output in outputs
        if isinstance(output.sink, TopicSink) and output.guarantee == "exactly-once"
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
                continue  # to look must not make it
            decision = run(clients(options).read_state(names)).decision
            if decision is not None:
                query.decided_batch, query.held_ms = decision.batch, decision.held_ms
    except (KafkaError, OttlaError) as error:
        status.notes.append(f"no decisions: {error}")


def _sink_names(sink_name: str | None, checkpoint: Path) -> "Names | None":
    """The names that a sink uses: the user's, else made of the query's id, which Spark keeps with the checkpoint."""
    from ottla.spark.ledger import Names
    from ottla.spark.sink_options import default_sink_name

    if sink_name is not None:
        return Names(sink_name)
    try:
        return Names(default_sink_name(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]))
    except (OSError, ValueError, KeyError):
        return None


def _add_lag(made: Pipeline, status: Status) -> None:
    from ottla.client.blocking import Admin

    assert status.bootstrap is not None
    try:
        with Admin(admin_settings(status.bootstrap, made.kafka)) as admin:
            ends = end_offsets(admin, made.topics_in)
            for query in status.queries:
                shown = admin.list_group_offsets(query.group)
                positions: dict[str, dict[str, int]] = {
                    topic: dict(offsets) for topic, offsets in query.positions.items()
                }
                for partition, committed in shown.items():
                    positions.setdefault(partition.topic, {})[str(partition.partition)] = committed.offset
                topics = made.topics_in if query.name in made.outputs else positions
                for topic in topics:
                    query.lag[topic] = lag_between({topic: positions.get(topic, {})}, ends)
    except (KafkaError, OttlaError) as error:
        status.notes.append(f"no lag: the brokers at {status.bootstrap} do not answer ({error})")
