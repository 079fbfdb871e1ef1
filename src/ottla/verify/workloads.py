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
from ottla.verify.workers.worker import Setup, Worker

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
    stage, crew = Stage(), _Crew(options, libraries, recorder)
    for name in dict.fromkeys(options.workloads):
        _BUILDERS[name](options, crew, stage)
    return stage


@dataclass(frozen=True, slots=True)
class _Crew:
    """What all workers of a run have in common."""

    options: Options
    libraries: Sequence[ClientLibrary]
    recorder: Recorder

    def setup(self, name: str, number: int) -> Setup:
        """For a worker with this name. The number chooses its library: they take turns, and -1 is the last one."""
        library = self.libraries[number % len(self.libraries)]
        return Setup(name, library, self.recorder, self.options.seed, self.options.rate)

    def senders(self, name: str, topic: str, count: int) -> list[Worker]:
        return [Sender(self.setup(f"{name}-{n}", n), topic, self.options.partitions) for n in range(count)]


def _list_append(options: Options, crew: _Crew, stage: Stage) -> None:
    topic = f"{options.prefix}-append"
    stage.topics.append(topic)
    stage.writers += crew.senders("append-sender", topic, options.clients)
    for n in range(options.clients):
        # Assigned and subscribed in turn, and with each isolation level; in the second half of the readers too.
        isolation = (COMMITTED, UNCOMMITTED)[n // 2 % 2 if n % 2 else n % 2]
        group = f"{options.prefix}-reader-{n}" if n % 2 else ""
        stage.readers.append(
            Reader(
                crew.setup(f"append-reader-{n}", n),
                topic,
                options.partitions,
                isolation=UNCOMMITTED if n == 2 else isolation,
                group=group,
            )
        )


def _transactions(options: Options, crew: _Crew, stage: Stage) -> None:
    topic = f"{options.prefix}-transactions"
    stage.topics.append(topic)
    for n in range(options.clients):
        name = f"{options.prefix}-transactions-{n}"
        stage.transactional_ids.append(name)
        stage.offset_groups[name] = topic
        stage.writers.append(
            TransactionWorker(
                crew.setup(f"transactions-{n}", n), topic, options.partitions, transactional_id=name, group=name
            )
        )
    stage.readers.append(Reader(crew.setup("transactions-reader", -1), topic, options.partitions, isolation=COMMITTED))


def _copier(options: Options, crew: _Crew, stage: Stage) -> None:
    source, target, group = (f"{options.prefix}-{name}" for name in ("input", "output", "copiers"))
    stage.topics += [source, target]
    stage.groups[group] = source
    stage.writers += crew.senders("copier-source", source, 1)
    for n in range(options.clients):
        name = f"{options.prefix}-copier-{n}"
        stage.transactional_ids.append(name)
        stage.followers.append(Copier(crew.setup(f"copier-{n}", n), source, target, transactional_id=name, group=group))
    stage.readers.append(Reader(crew.setup("copier-reader", -1), target, options.partitions, isolation=COMMITTED))


def _groups(options: Options, crew: _Crew, stage: Stage) -> None:
    topic, group = f"{options.prefix}-group", f"{options.prefix}-members"
    stage.topics.append(topic)
    stage.groups[group] = topic
    stage.writers += crew.senders("group-source", topic, 1)
    for n in range(options.clients):
        stage.followers.append(Member(crew.setup(f"group-member-{n}", n), topic, group=group))


_BUILDERS = {"list-append": _list_append, "transactions": _transactions, "copier": _copier, "groups": _groups}
