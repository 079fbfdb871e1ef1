"""`ottla pipeline`: run and supervise a pipeline on Spark, validate it without running it, show its status."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_config import references_to_file
from ottla.cli.output import (
    INTERRUPTED,
    CommandError,
    console,
    count,
    plural,
    print_facts,
    print_json,
    print_table,
    time_text,
)
from ottla.cli.session import AsJson, check_reachable, parse_pairs
from ottla.errors import OttlaError

if TYPE_CHECKING:
    from ottla.cli.pipeline.view import View
    from ottla.pipeline.definition.model import Pipeline
    from ottla.pipeline.definition.problems import Problem
    from ottla.pipeline.running.state import StateDirectory
    from ottla.pipeline.running.status import Status

app = typer.Typer(
    help="Run exactly-once pipelines on Spark: topics in, topics or a database out.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file (YAML or Python).")]
brokers_option = partial(typer.Option, "--bootstrap", "-b", metavar="HOST:PORT,…", envvar="OTTLA_BOOTSTRAP")
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master. Default: `master` in FILE, else this machine."),
]
Changes = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a value of FILE; repeatable.")]


@app.command()
def run(
    file: File,
    master: Master = None,
    once: Annotated[bool, typer.Option("--once", metavar="", help="Process the available records, then exit.")] = False,
    bootstrap: Annotated[
        str | None, brokers_option(help="Brokers. Default: `bootstrap` in FILE, else an embedded broker.")
    ] = None,
    changes: Changes = [],  # noqa: B006
    max_restarts: Annotated[
        int,
        typer.Option("--max-restarts", metavar="N", min=0, help="Stop after N consecutive failures."),
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C, and restart it after failures.

    Ctrl-C finishes the current batch first; a second Ctrl-C stops immediately.

    \b
    Examples:
      ottla pipeline run revenue.yaml
      ottla pipeline run revenue.yaml --bootstrap 127.0.0.1:9092 --once
      ottla pipeline run big_orders.py --master spark://host:7077
      ottla pipeline run revenue.yaml --set trigger='10 seconds'
      ottla pipeline run revenue.yaml --json | jq .rows_out
    """
    from ottla.pipeline.definition.options import SQLITE_IS_LOCAL, is_sqlite
    from ottla.pipeline.running.state import StateDirectory, remember

    made, wanted = _load(file, changes, bootstrap)
    chosen = master or made.master
    if chosen and not chosen.startswith("local") and any(is_sqlite(output) for output in made.outputs.values()):
        raise OttlaError(SQLITE_IS_LOCAL, "Use PostgreSQL, or --master 'local[*]'.")
    state = StateDirectory(made)
    with state.lock(made.name) as lock, _brokers(made, state, bootstrap or made.bootstrap) as (address, broker):
        remember(made)
        job = {"file": str(file.absolute()), "changes": wanted, "once": once, "master": master}
        with _view(made, as_json) as view:
            if broker is not None:
                view.say(f"embedded broker at {address}, data in {state.broker_data}")
            status = _supervise(made, state, view, address, job, lock, max_restarts, broker)
    raise typer.Exit(status)


def _load(file: Path, changes: Sequence[str], bootstrap: str | None) -> "tuple[Pipeline, dict[str, str]]":
    """The pipeline, and the changes it was loaded with. An embedded broker needs no settings of --command-config."""
    from ottla.pipeline.definition.loading import load

    own, of_file = parse_pairs(changes, "--set"), references_to_file()
    made = load(file, of_file | own)
    if of_file and bootstrap is None and made.bootstrap is None:
        return load(file, own), own
    return made, of_file | own


def _supervise(
    made: "Pipeline",
    state: "StateDirectory",
    view: "View",
    address: str,
    job: dict[str, Any],
    lock: int,
    max_restarts: int,
    broker: Any,
) -> int:
    from ottla.pipeline.running.supervisor import Supervisor

    def on_tick(run_state: Any) -> None:
        if broker is not None and not broker.is_running:
            view.say("the embedded broker exited; restarting it")
            broker.restart()
        view.on_tick(run_state)

    supervisor = Supervisor(
        made,
        state,
        bootstrap=address,
        job=job,
        max_restarts=max_restarts,
        embedded_broker=broker is not None,
        on_event=view.on_event,
        on_tick=on_tick,
    )
    interrupts = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        supervisor.request_stop()

    with _handling((signal.SIGINT, signal.SIGTERM), on_signal):
        failure = supervisor.run(lock)
    if failure is not None:
        log = f"The driver's log is {state.driver_log}."
        raise CommandError(f"{made.name}: {failure.cause}", f"{failure.hint} {log}".strip())
    return INTERRUPTED if interrupts > 1 else 0


@contextlib.contextmanager
def _handling(signals: Sequence[signal.Signals], handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def _brokers(made: "Pipeline", state: "StateDirectory", bootstrap: str | None) -> Iterator[tuple[str, Any]]:
    """The brokers to use: the configured ones, or an embedded broker."""
    from ottla.pipeline.definition.problems import PipelineError
    from ottla.pipeline.running.checking import check_topics
    from ottla.pipeline.running.lag import admin_settings

    if bootstrap is not None:
        check_reachable(bootstrap, admin_settings(bootstrap, made.kafka))
        problems = check_topics(made, bootstrap)
        if problems:
            raise PipelineError(problems)
        yield bootstrap, None
        return
    from ottla.cli.pipeline.broker import create_missing_topics, embedded_broker, last_address

    with embedded_broker(state.broker_data, last_address(state)) as broker:
        create_missing_topics(made, broker.bootstrap)
        yield broker.bootstrap, broker


def _view(made: "Pipeline", as_json: bool) -> "View":
    from ottla.cli.pipeline.view import JsonView, LiveView, PlainView

    if as_json:
        return JsonView()
    return LiveView(made.name) if console().is_terminal else PlainView()


@app.command()
def validate(
    file: File,
    bootstrap: Annotated[
        str | None,
        brokers_option(help="Brokers whose topics are checked. Default: `bootstrap` in FILE; with neither, none are."),
    ] = None,
    changes: Changes = [],  # noqa: B006
    no_spark: Annotated[
        bool, typer.Option("--no-spark", metavar="", help="Check only what needs no Spark: keys, options and topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline without running it.

    Checks keys, options and, with brokers, the topics, which takes a second.
    If these are valid, starts Spark to check schemas, SQL and the columns of
    the sink.

    \b
    Examples:
      ottla pipeline validate revenue.yaml
      ottla pipeline validate revenue.yaml --bootstrap 127.0.0.1:9092 --json
      ottla pipeline validate revenue.yaml --no-spark    # for a pre-commit hook
    """
    from ottla.pipeline.definition.problems import PipelineError
    from ottla.pipeline.running.checking import check_topics
    from ottla.pipeline.running.lag import admin_settings

    wanted: dict[str, str] = {}
    problems: list[Problem] = []
    made = None
    address = bootstrap
    try:
        made, wanted = _load(file, changes, bootstrap)
        address = bootstrap or made.bootstrap
    except PipelineError as error:
        problems = error.problems
    if made is not None and address is not None:
        check_reachable(address, admin_settings(address, made.kafka))
        problems = check_topics(made, address)
    needs_spark = made is not None and not problems and not no_spark
    if needs_spark:
        problems = _check_on_spark(file, wanted)
    if as_json:
        print_json([problem.__dict__ for problem in problems])
    elif not problems:
        assert made is not None
        console().print(f"{file} is valid: {_summary(made)}")
        unchecked = ["topics (no brokers configured)"] if address is None else []
        unchecked += ["schemas, SQL and the columns of the sink (--no-spark)"] if no_spark else []
        for what in unchecked:
            console().print(f"not checked: {what}", style="dim")
    else:
        for problem in problems:
            sys.stdout.write(f"{problem}{f' ({problem.hint})' if problem.hint else ''}\n")
        if not needs_spark:
            console().print("schemas and SQL are checked once this is fixed", style="dim")
    if problems:
        raise CommandError(f"{plural(len(problems), 'problem')} in {file}")


def _check_on_spark(file: Path, changes: dict[str, str]) -> "list[Problem]":
    """Checks schemas and SQL in a Spark driver that reads no data."""
    from ottla.pipeline.definition.problems import Problem
    from ottla.pipeline.running.supervisor import Driver

    descriptor, log = tempfile.mkstemp(prefix="ottla-validate-", suffix=".log")
    os.close(descriptor)
    job = {"task": "validate", "file": str(file.absolute()), "changes": changes}
    driver = Driver(job, Path(log))
    found: list[Problem] | None = None
    failure = ""
    try:
        while (event := driver.events.get()) is not None:
            if event["event"] == "problems":
                found = [Problem(**problem) for problem in event["problems"]]
            elif event["event"] == "failed":
                failure = event["cause"]
    except BaseException:
        driver.kill()
        raise
    finally:
        driver.close()
    if found is None:
        raise CommandError(
            f"Spark could not check {file}: {failure or 'the driver exited without an error message'}",
            f"Its log is {log}.",
        )
    os.unlink(log)
    # With the path as the user typed it.
    return [Problem(str(file), p.line, p.key, p.cause, p.hint) for p in found]


def _summary(made: "Pipeline") -> str:
    sources = ", ".join(source.shown for source in made.sources.values())
    sinks = ", ".join(f"{output.sink.shown} {output.guarantee}" for output in made.outputs.values())
    return f"{sources} to {sinks}"


@app.command()
def status(
    which: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="Pipeline file, or name of a pipeline that ran on this machine.")
    ],
    bootstrap: Annotated[
        str | None, brokers_option(help="Brokers. Default: `bootstrap` in FILE, else those of the last run.")
    ] = None,
    changes: Changes = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show a pipeline's state, last batches and lag.

    \b
    Examples:
      ottla pipeline status revenue.yaml
      ottla pipeline status revenue --json
    """
    from ottla.pipeline.running.state import recall
    from ottla.pipeline.running.status import status_of

    path = Path(which)
    if not path.exists() and path.suffix not in (".yaml", ".yml", ".py"):
        found = recall(which)
        if found is None:
            raise CommandError(f"pipeline {which} has not run on this machine", "pass the path of its file")
        path = found
    made, _ = _load(path, changes, bootstrap)
    seen = status_of(made, bootstrap)
    if as_json:
        print_json(seen.document())
    else:
        _print_status(seen)


def _print_status(seen: "Status") -> None:
    who = f"{seen.pid} on {seen.host}" if seen.is_running else "not running"
    facts: dict[str, Any] = {
        "pipeline": seen.name,
        "state": seen.phase,
        "process": who,
        "brokers": seen.bootstrap,
        "checkpoint": seen.checkpoint,
    }
    if seen.since_ms is not None:
        facts["last run" if not seen.is_running else "since"] = time_text(seen.since_ms)
    if seen.restarts:
        facts["restarts"] = seen.restarts
    if seen.last_failure:
        facts["last failure"] = seen.last_failure
    print_facts(facts)
    console().print()
    columns = ["query", "to", "guarantee", "batch", "committed", "readers blocked", "lag", "group"]
    rows = []
    for query in seen.queries:
        lag = ", ".join(f"{topic} {'-' if n is None else count(n)}" for topic, n in query.lag.items())
        sink = query.sink
        if query.ledger_batch is not None:
            sink += f" (has batch {query.ledger_batch})"
        committed = time_text(query.committed_ms) if query.committed_ms is not None else None
        held = None if query.held_ms is None else f"{count(query.held_ms)} ms"
        rows.append([query.name, sink, query.guarantee, query.last_batch, committed, held, lag or None, query.group])
    print_table(columns, rows, right=["batch", "readers blocked"])
    for note in seen.notes:
        console().print(note, style="dim")
