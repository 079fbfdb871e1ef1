"""`ottla verify`: runs clients against a cluster, injects faults, and checks the history of what the clients saw.

Exit statuses: 0 nothing found, 1 anomalies, 2 the command line is wrong or the run is impossible, 3 inconclusive.
"""

import contextlib
import logging
import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

import ottla
from ottla.cli.output import CommandError, console, logs_from, print_error, print_json
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    check_known,
    check_reachable,
    client_settings,
    explain,
)
from ottla.cli.verify.report import as_json as result_as_json
from ottla.cli.verify.report import print_result, write_files
from ottla.cli.verify.view import VerifyView
from ottla.client.blocking import Admin
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError
from ottla.verify.checks.checker import check, why_inconclusive
from ottla.verify.clients.port import ClientLibrary
from ottla.verify.cluster.plan import FAULTS, parse_faults
from ottla.verify.hangs import StallWatch
from ottla.verify.history import History
from ottla.verify.history_file import from_lines
from ottla.verify.run import FaultInjector, Run
from ottla.verify.workloads import WORKLOADS, Options

ANOMALIES, IMPOSSIBLE, INCONCLUSIVE = 1, 2, 3
_DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9}(?:\.[0-9]+)?)s?)?")
CLIENTS = ("ottla", "confluent", "both")
STORES = ("sqlite", "etcd")


def verify(
    context: typer.Context,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    time: Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="How long to run: 90s, 5m, 1h30m.")] = "1m",
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", metavar="NAME", help=f"{', '.join(WORKLOADS)}; repeatable. Default: all."),
    ] = None,
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="Client library: ottla, confluent or both.")
    ] = "ottla",
    cluster: Annotated[
        str,
        typer.Option("--cluster", metavar="local:N", help="Start N brokers on this machine, instead of --bootstrap."),
    ] = "",
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            metavar="LIST",
            help=f"Faults to inject into a local cluster: {','.join(FAULTS)}. Default: none.",
        ),
    ] = "",
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata", metavar="STORE", help="Metadata store of a local cluster: sqlite or etcd (three members)."
        ),
    ] = "sqlite",
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, max=100, help="Clients per role.")] = 3,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, max=1000, help="Partitions per topic.")
    ] = 3,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            metavar="N",
            help="Replication factor of the topics. -1: 3, or one per broker if there are fewer.",
        ),
    ] = -1,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0.1, max=100_000, help="Operations per second of each client.")
    ] = 40.0,
    patience: Annotated[
        str,
        typer.Option(
            "--patience", metavar="TIME", help="How long a client may fail without a fault before it counts as hanging."
        ),
    ] = "1m",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Repeat the faults and random choices of a run.")
    ] = None,
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="TEXT", help="Prefix of the names of topics, groups and transactional ids."),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write the history and pictures to this directory."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE", help="Check a recorded history instead of a cluster.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", metavar="", help="Do not delete the topics at the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for lost, duplicated, reordered, aborted or torn records in any Kafka cluster.

    Clients write unique values and record every response. At the end everything
    is read, and a checker reports each anomaly with the operations that prove
    it. Creates topics in the cluster. Exit status: 0 nothing found, 1 anomalies,
    2 wrong options or the run is impossible, 3 inconclusive.

    \b
    Examples:
      ottla verify --bootstrap kafka-1:9092 --time 5m
      ottla verify --workload transactions --workload copier --client both
      ottla verify --cluster local:3 --faults kill,pause --time 10m -o result
      ottla verify --history result/history.jsonl
    """
    try:
        if history is not None:
            with open(history, encoding="utf-8") as file:
                recorded = from_lines(file, str(history))
            raise typer.Exit(_report(recorded, output, as_json))
        (client,) = check_known("--client", [client], CLIENTS)
        (metadata,) = check_known("--metadata", [metadata], STORES)
        if cluster and getattr(context.get_parameter_source("bootstrap"), "name", "") == "COMMANDLINE":
            raise OttlaError("--cluster cannot be combined with --bootstrap", "use only one of them")
        if faults and not cluster:
            raise OttlaError("--faults needs a local cluster", "add --cluster local:3")
        if metadata != "sqlite" and not cluster:
            raise OttlaError("--metadata needs a local cluster", "add --cluster local:3")
        chosen_seed = random.randrange(1_000_000) if seed is None else seed
        options = Options(
            workloads=_workloads(workload),
            seconds=parse_duration(time),
            seed=chosen_seed,
            clients=clients,
            partitions=partitions,
            rate=rate,
            patience_s=parse_duration(patience),
            prefix=prefix or f"ottla-verify-{chosen_seed}",
            replication_factor=replication_factor,
        )
        with logs_from("ottla", logging.CRITICAL), VerifyView(options.seconds, is_silent=as_json) as view:
            made = _run(options, bootstrap, cluster, faults, metadata, client, view, keep=keep)
    except (CommandError, KafkaError) as error:
        message, hint = explain(error) if isinstance(error, KafkaError) else (error.message, error.hint)
        print_error(message, hint)
        raise typer.Exit(IMPOSSIBLE) from None
    raise typer.Exit(_report(made, output, as_json))


def _run(
    options: Options,
    bootstrap: str,
    cluster: str,
    faults: str,
    metadata: str,
    client: str,
    view: VerifyView,
    *,
    keep: bool,
) -> History:
    with contextlib.ExitStack() as stack:
        fault_injector: FaultInjector | None = None
        kinds = parse_faults(faults)
        if cluster:
            from ottla.verify.cluster.local import LocalCluster, parse_cluster
            from ottla.verify.cluster.nemesis import Nemesis

            brokers = parse_cluster(cluster)
            ports: Sequence[int] = ()
            if metadata == "etcd":
                from ottla.verify.cluster.etcd import LocalEtcd

                ports = stack.enter_context(LocalEtcd()).ports
            started = stack.enter_context(LocalCluster(brokers, store_ports=ports, store_setting="etcd://{}/ottla"))
            view.say(f"{brokers} brokers started, with metadata in {metadata}")
            if kinds:
                fault_injector = Nemesis(started, kinds, options.seed, patience_s=options.patience_s, say=view.say)
            settings = {"bootstrap.servers": started.bootstrap}
        else:
            settings = client_settings(bootstrap)
            check_reachable(settings["bootstrap.servers"], settings)
        run = Run(
            options,
            settings,
            _libraries(client, settings),
            fault_injector=fault_injector,
            say=view.say,
            on_tick=view.tick,
        )
        about = {
            "ottla": ottla.__version__,
            "bootstrap": settings["bootstrap.servers"],
            "cluster": cluster,
            "metadata": metadata if cluster else "",
            "faults": list(kinds),
            "client": client,
            "seconds": options.seconds,
            "seed": options.seed,
            "patience_s": options.patience_s,
            "prefix": options.prefix,
        }
        with _interruptible(run, view.say), StallWatch(run.recorder, view.say):
            history = run.execute()
        history.about |= about
        if not keep and not cluster:
            _delete_topics(settings, run.topics, view.say)
        return history


def _delete_topics(settings: Mapping[str, str], topics: Sequence[str], say: Callable[[str], None]) -> None:
    try:
        with Admin(settings) as admin:
            admin.delete_topics(topics)
    except KafkaError as error:
        say(f"the topics cannot be deleted: {error.code.name} {error.detail}")


@contextlib.contextmanager
def _interruptible(run: Run, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C ends the run early; the recorded history is still checked. A second one ends the program."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        say("ending early, reading everything; press Ctrl-C again to stop now")
        run.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _libraries(client: str, settings: Mapping[str, str]) -> list[ClientLibrary]:
    libraries: list[ClientLibrary] = []
    if client in ("ottla", "both"):
        from ottla.verify.clients.own import OwnLibrary

        libraries.append(OwnLibrary(settings))
    if client in ("confluent", "both"):
        from ottla.verify.clients.confluent import ConfluentLibrary

        libraries.append(ConfluentLibrary(settings))
    return libraries


def _report(history: History, output: Path | None, as_json: bool) -> int:
    """Checks, prints, writes. Returns the exit status."""
    started = monotonic()
    anomalies = check(history)
    checked_s = monotonic() - started
    inconclusive = "" if anomalies else why_inconclusive(history)
    files = [] if output is None else write_files(history, anomalies, output)
    if as_json:
        print_json(result_as_json(history, anomalies, inconclusive, output))
    else:
        print_result(history, anomalies, inconclusive, checked_s)
        if output is not None:
            console().print(f"written to {output}: {', '.join(files)}")
    return ANOMALIES if anomalies else INCONCLUSIVE if inconclusive else 0


def _workloads(given: Sequence[str] | None) -> tuple[str, ...]:
    names = [name.strip() for each in given or () for name in each.split(",") if name.strip()]
    return tuple(names) or WORKLOADS


def parse_duration(text: str) -> float:
    """Seconds.

    >>> parse_duration("90s"), parse_duration("5m"), parse_duration("1h30m"), parse_duration("2.5")
    (90.0, 300.0, 5400.0, 2.5)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise OttlaError(f"{text!r} is not a time", "write it as in 90s, 5m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise OttlaError(f"the time {text} is too short", "choose at least 1s")
    return total
