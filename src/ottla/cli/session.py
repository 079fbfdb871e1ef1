"""Shared by all commands: options for the brokers, a connection check, lookups, and error messages."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from ottla.checks import topic_name_problem, unsigned_from_text
from ottla.cli.client_config import settings_from_file
from ottla.cli.output import CommandError
from ottla.client.admin.transaction_model import OpenTransaction
from ottla.client.blocking import Admin, Consumer
from ottla.client.core.model import ConsumerRecord, TopicDescription
from ottla.client.core.security import client_security
from ottla.client.core.security_settings import SECURITY
from ottla.client.core.settings import AdminConfig, ClientConfig, ConsumerConfig, build, parse_endpoint
from ottla.errors import AuthenticationError, ErrorCode, KafkaError, OttlaError, did_you_mean
from ottla.net.client.connection import Connection
from ottla.net.client.tls_errors import DroppedTlsError
from ottla.types import INT64_MAX, TopicPartition

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
NOT_SERVED = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
"""An old cluster, or one that denies the call: the output omits that part."""
CONNECT_TIMEOUT_MS = 5_000
API_TIMEOUT_MS = 20_000

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        "--bootstrap-server",  # the name in Kafka's own tools
        metavar="HOST:PORT,…",
        envvar="OTTLA_BOOTSTRAP",
        help="Brokers to connect to.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask for confirmation.")]


def check_reachable(bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
    """Tries every address once. If none accepts a connection, raises an error that lists each address and reason.

    `settings` are those of the client, with its security; by default those of an Admin of this command.
    """
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise OttlaError("--bootstrap is empty", f"write HOST:PORT, as in {DEFAULT_BOOTSTRAP}")
    endpoints = [parse_endpoint(server) for server in servers]
    security = client_security(build(AdminConfig, settings or client_settings(bootstrap), {}))

    async def attempt() -> None:
        reasons = []
        for endpoint in endpoints:
            try:
                connection = await Connection.open(
                    endpoint, connect_timeout_ms=CONNECT_TIMEOUT_MS, security=security, may_need_sasl=True
                )
            except AuthenticationError:
                raise  # the broker is reachable: the address is not the problem
            except KafkaError as error:
                reasons.append(f"{error.detail}{f' ({error.hint})' if isinstance(error, DroppedTlsError) else ''}")
            else:
                connection.close()
                return
        raise CommandError(
            "; ".join(reasons),
            "start a broker with: ottla serve, or pass the address of a running one with --bootstrap HOST:PORT",
        )

    asyncio.run(attempt())


def client_settings(
    bootstrap: str, extra: Sequence[str] = (), kind: type[ClientConfig] = AdminConfig
) -> dict[str, str]:
    """Settings of a command's client: the brokers, timeouts for interactive use, those of --command-config, and the
    values of --set. An Admin gets only the values of --set that all clients have."""
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": "ottla-cli",
        "default.api.timeout.ms": str(API_TIMEOUT_MS),
        "socket.connection.setup.timeout.ms": str(CONNECT_TIMEOUT_MS),
    }
    chosen = parse_pairs(extra, "--set")
    if kind is AdminConfig:
        chosen = {name: value for name, value in chosen.items() if name.startswith(SECURITY)}
    return settings | settings_from_file(kind) | chosen


def read_to_end(bootstrap: str, partition: TopicPartition) -> Iterator[ConsumerRecord]:
    """Every record that is in a partition now, oldest first."""
    reading = {"auto.offset.reset": "earliest", "allow.auto.create.topics": "false"}
    settings = client_settings(bootstrap, kind=ConsumerConfig) | reading
    with Consumer(settings) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            yield from consumer.poll(1_000)


def report_outages() -> None:
    """Logs lost and restored connections to standard error, for commands that run until Ctrl-C."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ottla: %(message)s"))
    logger = logging.getLogger("ottla.net")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def open_admin(bootstrap: str, extra: Sequence[str] = ()) -> Admin:
    """`extra` are the values of --set: those about security are for this client too."""
    settings = client_settings(bootstrap, extra)
    check_reachable(bootstrap, settings)
    return Admin(settings)


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parses NAME=VALUE options.

    >>> parse_pairs(["retention.ms=1000"], "--config")
    {'retention.ms': '1000'}
    """
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise OttlaError(f"{option} {pair} has no '='", f"write {option} NAME=VALUE")
        parsed[name.strip()] = value
    return parsed


def parse_time(text: str) -> int:
    """The timestamp of a date and time, which is local unless it has an offset, or of milliseconds since 1970.

    Raises ValueError.

    >>> parse_time("1700000000000"), parse_time("@1700000000000"), parse_time("2023-11-14T22:13:20+00:00")
    (1700000000000, 1700000000000, 1700000000000)
    """
    stripped = text.strip()
    timestamp = unsigned_from_text(stripped.removeprefix("@"))
    if timestamp is not None:
        if timestamp > INT64_MAX:
            raise ValueError(f"{text} is out of range: the limit is {INT64_MAX}")
        return timestamp
    try:
        return int(datetime.fromisoformat(stripped).timestamp() * 1000)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{text} is out of range") from error


def confirm(question: str, yes: bool, show: Callable[[], None] | None = None) -> None:
    """Ends the command unless the user agrees. Asks on a terminal only, and not with --yes.

    `show` prints what the answer is about, before the question.
    """
    if yes or not sys.stdin.isatty() or not sys.stdout.isatty():
        return
    if show is not None:
        show()
    if not typer.confirm(question):
        raise typer.Exit(1)


def check_known(option: str, given: Iterable[str], known: Sequence[str]) -> list[str]:
    """The values of an option as they are in `known`, in any case. Others are an error that suggests a similar one.

    >>> check_known("--state", ["stable"], ("Stable", "Empty"))
    ['Stable']
    """
    by_name = {name.lower(): name for name in known}
    values = list(given)
    for value in values:
        if value.lower() not in by_name:
            hint = did_you_mean(value.lower(), by_name, f"use one of {', '.join(known)}")
            raise OttlaError(f"unknown value {value} for {option}", hint)
    return [by_name[value.lower()] for value in values]


def check_topic_name(name: str) -> str:
    """Rejects topic names that every broker rejects, before a request is sent."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise OttlaError(f"topic name is invalid: {problem}", "choose another name")
    return name


def find_topics(
    admin: Admin, names: Sequence[str], otherwise: str = "list the topics with: ottla topic list"
) -> list[TopicDescription]:
    """Describes topics. A missing topic is an error that suggests a similar name, or else the hint `otherwise`."""
    for name in names:
        check_topic_name(name)
    try:
        return admin.describe_topics(names)
    except KafkaError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    known = [topic.name for topic in admin.list_topics(include_internal=True)]
    missing = next(name for name in names if name not in known)
    raise CommandError(f"topic {missing} does not exist", did_you_mean(missing, known, otherwise))


def check_partitions(topic: TopicDescription, partitions: Sequence[int]) -> None:
    for partition in partitions:
        if not 0 <= partition < len(topic.partitions):
            last = len(topic.partitions) - 1
            has = "only partition 0" if last == 0 else f"partitions 0 to {last}"
            raise OttlaError(f"topic {topic.name} has no partition {partition}", f"it has {has}")


def find_open_transactions(
    admin: Admin, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[OpenTransaction]]:
    """Transactions that hold back read_committed readers; empty if the broker does not support or allow the query."""
    if not partitions:
        return {}
    try:
        return admin.find_open_transactions(partitions)
    except KafkaError as error:
        if error.retriable:
            raise
        return {}


def explain(error: KafkaError) -> tuple[str, str]:
    """A broker's error as (message, hint)."""
    if not error.detail:
        return error.code.name, error.hint
    # A detail that suggests a name needs no general advice.
    hint = "" if "did you mean" in error.detail else error.hint
    code = f" [{error.code.name}]" if error.code.name in error.message else ""
    return f"{error.detail.rstrip('.')}{code}", hint


def status_of(error: Any) -> int:
    """Exit status: 2 if the command line is wrong, 1 if the command failed."""
    return 2 if isinstance(error, OttlaError) and not isinstance(error, CommandError | KafkaError) else 1
