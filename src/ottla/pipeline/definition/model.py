"""A pipeline as read from its file: sources, tables, outputs and their guarantee. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.core.guarantees import Guarantee

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead-letter"
BAD_RECORD_POLICIES = (FAIL, SKIP, DEAD_LETTER)
OUTPUT_MODES = ("append", "complete", "update")


@dataclass(frozen=True)
class Source:
    """Topics that are read as one table."""

    name: str
    """The table's name in SQL."""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    schema: str | None = None
    """The columns of JSON values, for example `id bigint, item string`. None: the record's own columns."""
    watermark: tuple[str, str] | None = None
    """The column with the event time, and how late it may be."""
    on_bad_record: str = FAIL
    dead_letter_topic: str | None = None
    starting_offsets: str = "earliest"
    metadata: bool = False
    """Whether the columns _key, _topic, _partition, _offset and _timestamp are added."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return ", ".join(self.topics) or f"topics that match {self.pattern}"


@dataclass(frozen=True)
class Table:
    """Files to join a stream with. They are read once, at the start."""

    name: str
    path: str
    format: str = "csv"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSink:
    """A topic to write to, or several."""

    topic: str
    """Empty if a column has the topic of each row."""
    key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    topic_column: str = ""

    @property
    def shown(self) -> str:
        return f"topic {self.topic}" if self.topic else f"the topics in column {self.topic_column}"


@dataclass(frozen=True)
class DatabaseSink:
    """A table of a database to write to."""

    url: str
    table: str
    upsert_keys: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        from ottla.spark.database.options import without_password

        return f"table {self.table} of {without_password(self.url)}"


@dataclass(frozen=True)
class Output:
    """One query: a transformation and its sink."""

    name: str
    sink: TopicSink | DatabaseSink
    sql: str | None = None
    function: Callable[..., Any] | None = None
    sources: tuple[str, ...] = ()
    """The sources and tables that a function takes. SQL can use all of them by name."""
    parameters: tuple[str, ...] = ()
    """What the function calls them. Another function of the file may use the same name for another source."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    trigger: str | None = None
    output_mode: str = "append"


@dataclass(frozen=True)
class Pipeline:
    """The content of one pipeline file."""

    name: str
    file: str
    sources: Mapping[str, Source]
    outputs: Mapping[str, Output]
    checkpoint: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    bootstrap: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of every Kafka client of the pipeline, under Kafka's names."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session."""
    master: str | None = None
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """The line of each key in the file, for messages."""

    @property
    def dead_letter_sources(self) -> list[Source]:
        return [source for source in self.sources.values() if source.on_bad_record == DEAD_LETTER]

    @property
    def topics_out(self) -> list[str]:
        sinks = [output.sink.topic for output in self.outputs.values() if isinstance(output.sink, TopicSink)]
        dead = [source.dead_letter_topic for source in self.dead_letter_sources if source.dead_letter_topic]
        return list(dict.fromkeys(topic for topic in (*sinks, *dead) if topic))

    @property
    def topics_in(self) -> list[str]:
        return list(dict.fromkeys(topic for source in self.sources.values() for topic in source.topics))

    def group_of(self, query: str) -> str:
        """The consumer group under which a query's progress is shown."""
        return self.name if len(self.outputs) == 1 and query in self.outputs else f"{self.name}.{query}"

    @property
    def queries(self) -> dict[str, Output]:
        """Every query that runs: the outputs, and one for each source with a dead-letter topic."""
        letters = [self.dead_letters(source) for source in self.dead_letter_sources]
        return {**self.outputs, **{output.name: output for output in letters}}

    def dead_letters(self, source: Source) -> Output:
        """The query that writes a source's bad records, with the guarantee of the outputs if it is the same for all."""
        assert source.dead_letter_topic is not None
        guarantees = {output.guarantee for output in self.outputs.values()}
        guarantee = guarantees.pop() if len(guarantees) == 1 else Guarantee.EXACTLY_ONCE
        return Output(dead_letter_query(source), TopicSink(source.dead_letter_topic), guarantee=guarantee)

    def line_of(self, *path: str) -> int | None:
        """The line of a key, or of the nearest one around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def dead_letter_query(source: Source) -> str:
    return f"dead-letter.{source.name}"
