"""The workloads of a run: their topics, groups and workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.errors import OttlaError
from ottla.verify.clients.port import ClientLibrary
from ottla.verify.history import COMMITTED, UNCOMMITTED
from ottla.verify.workers.copier import Copier
from ottla.verify.workers.groups import Member
from ottla.verify.workers.list_append import Reader, Sender
from ottla.verify.workers.recorder import Recorder
from ottla.verify.workers.transactions import TransactionWorker
from ottla.verify.workers.worker import Worker

WORKLOADS = ("list-append", "transactions", "copier", "groups")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    workloads: tuple[str, ...] = WORKLOADS
    seconds: float = 60.0
    seed: int = 0
    clients: int = 3
    """The number of clients of each role of each workload."""
    partitions: int = 3
    """The number of partitions of each topic."""
    rate: float = 40.0
    """Operations per second of each client."""
    patience_s: float = 60.0
    prefix: str = "ottla-verify"
    """The prefix of the names of topics, groups and transactional ids."""
    replication_factor: int = -1
    """-1: three, or the number of brokers if there are fewer."""

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in WORKLOADS:
                raise OttlaError(f"unknown workload {name!r}", f"choose from {', '.join(WORKLOADS)}")


@dataclass(slots=True)
class Stage:
    """The topics, workers and groups of a run."""

    topics: list[str] = field(default_factory=list)
    writers: list[Worker] = field(default_factory=list)
    """These stop first; the others may still have to read the records they wrote."""
    followers: list[Worker] = field(default_factory=list)
    """Groups that must reach the end of their topic."""
    readers: list[Worker] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    """Group -> the topic whose end it must reach."""
    offset_groups: dict[str, str] = field(default_factory=dict)
    """Group -> topic: committed offsets are read at the end, but need not reach it."""
    transactional_ids: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[Worker]:
        return [*self.writers, *self.followers, *self.readers]


def build(options: Options, libraries: Sequence[ClientLibrary], recorder: Recorder) -> Stage:
    """All workers of the chosen workloads. Libraries take turns."""
    stage = Stage()
    for name in dict.fromkeys(options.workloads):
        _BUILDERS[name](options, libraries, recorder, stage)
    return stage


def _list_append(options: Options, libraries: Sequence[ClientLibrary], recorder: Recorder, stage: Stage) -> None:
    topic = f"{options.prefix}-append"
    stage.topics.append(topic)
    stage.writers += _senders("append-sender", topic, options, libraries, recorder)
    for n in range(options.clients):
        # Assigned and subscribed in turn, and with each isolation level; in the second half of the readers too.
        isolation = (COMMITTED, UNCOMMITTED)[n // 2 % 2 if n % 2 else n % 2]
        group = f"{options.prefix}-reader-{n}" if n % 2 else ""
        stage.readers.append(
            Reader(
                f"append-reader-{n}",
                libraries[n % len(libraries)],
                recorder,
                options.seed,
                options.rate,
                topic,
                options.partitions,
                isolation=UNCOMMITTED if n == 2 else isolation,
                group=group,
            )
        )


def _transactions(options: Options, libraries: Sequence[ClientLibrary], recorder: Recorder, stage: Stage) -> None:
    topic = f"{options.prefix}-transactions"
    stage.topics.append(topic)
    for n in range(options.clients):
        name = f"{options.prefix}-transactions-{n}"
        stage.transactional_ids.append(name)
        stage.offset_groups[name] = topic
        stage.writers.append(
            TransactionWorker(
                f"transactions-{n}",
                libraries[n % len(libraries)],
                recorder,
                options.seed,
                options.rate,
                topic,
                options.partitions,
                transactional_id=name,
                group=name,
            )
        )
    stage.readers.append(
        Reader(
            "transactions-reader",
            libraries[-1],
            recorder,
            options.seed,
            options.rate,
            topic,
            options.partitions,
            isolation=COMMITTED,
        )
    )


def _copier(options: Options, libraries: Sequence[ClientLibrary], recorder: Recorder, stage: Stage) -> None:
    source, target, group = (f"{options.prefix}-{name}" for name in ("input", "output", "copiers"))
    stage.topics += [source, target]
    stage.groups[group] = source
    stage.writers += _senders("copier-source", source, options, libraries, recorder, count=1)
    for n in range(options.clients):
        name = f"{options.prefix}-copier-{n}"
        stage.transactional_ids.append(name)
        stage.followers.append(
            Copier(
                f"copier-{n}",
                libraries[n % len(libraries)],
                recorder,
                options.seed,
                options.rate,
                source,
                target,
                transactional_id=name,
                group=group,
            )
        )
    stage.readers.append(
        Reader(
            "copier-reader",
            libraries[-1],
            recorder,
            options.seed,
            options.rate,
            target,
            options.partitions,
            isolation=COMMITTED,
        )
    )


def _groups(options: Options, libraries: Sequence[ClientLibrary], recorder: Recorder, stage: Stage) -> None:
    topic, group = f"{options.prefix}-group", f"{options.prefix}-members"
    stage.topics.append(topic)
    stage.groups[group] = topic
    stage.writers += _senders("group-source", topic, options, libraries, recorder, count=1)
    for n in range(options.clients):
        stage.followers.append(
            Member(
                f"group-member-{n}",
                libraries[n % len(libraries)],
                recorder,
                options.seed,
                options.rate,
                topic,
                group=group,
            )
        )


def _senders(
    name: str,
    topic: str,
    options: Options,
    libraries: Sequence[ClientLibrary],
    recorder: Recorder,
    count: int | None = None,
) -> list[Worker]:
    return [
        Sender(
            f"{name}-{n}",
            libraries[n % len(libraries)],
            recorder,
            options.seed,
            options.rate,
            topic,
            options.partitions,
        )
        for n in range(options.clients if count is None else count)
    ]


_BUILDERS = {"list-append": _list_append, "transactions": _transactions, "copier": _copier, "groups": _groups}
