"""Converts a pipeline's keys to options of Spark's readers and writers, and checks them early."""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.client.core.foreign_settings import security_name
from ottla.client.core.guarantees import Guarantee
from ottla.client.core.settings import ConsumerConfig, ProducerConfig
from ottla.config import settings_of, unknown_setting
from ottla.errors import OttlaError
from ottla.pipeline.definition.model import DatabaseSink, Output, Pipeline, Source, TopicSink
from ottla.pipeline.definition.problems import Reader
from ottla.pipeline.definition.secrets import problems_in, resolve
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.sink.options import SinkOptions, default_sink_name
from ottla.spark.source.options import SourceOptions

BROKERS = "127.0.0.1:9092"
"""A placeholder for the brokers when only the names of options are checked."""

# Reserved options: each has its own key in a pipeline, which the option would override.
_RESERVED_FOR_QUERIES = {
    "kafka.bootstrap.servers": "bootstrap",
    "checkpointLocation": "checkpoint",
    "queryName": "name",
    "outputMode": "output_mode",
}
RESERVED_FOR_SOURCES = {
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.group.id": "name",
    "groupIdPrefix": "name",
    "subscribe": "topic or topics",
    "subscribePattern": "pattern",
    "assign": "topic or topics",
    "startingOffsets": "starting_offsets",
}
STARTING_TIMES = dict.fromkeys(("startingTimestamp", "startingOffsetsByTimestamp"), "starting_offsets")
"""These override offsets: with both, starting_offsets would be ignored."""
RESERVED_FOR_TOPICS = {**_RESERVED_FOR_QUERIES, "topic": "topic", "delivery": "guarantee"}
RESERVED_FOR_DATABASES = {
    **_RESERVED_FOR_QUERIES,
    "url": "url",
    "table": "table",
    "upsertKeys": "upsert_keys",
    "delivery": "guarantee",
    "sinkId": "name",
    "batchId": "name",
}
RESERVED_FOR_CLIENTS = {"bootstrap.servers": "bootstrap", "group.id": "name"}


def reject_reserved_options(
    reader: Reader, path: tuple[str, ...], options: Mapping[str, str], own: Mapping[str, str]
) -> None:
    """Rejects options that have their own key in a pipeline. Case does not matter, as in Spark."""
    small = {option.lower(): key for option, key in own.items()}
    for name in options:
        key = small.get(name.lower())
        if key is not None:
            reader.problem((*path, name), f"this option has its own key: {key}", f"Use {key} instead.")


def check_options(reader: Reader, made: Pipeline) -> None:
    """Runs the option checks of the source and the sinks before Spark is started."""
    known = {**settings_of(ConsumerConfig), **settings_of(ProducerConfig)}
    reject_reserved_options(reader, ("kafka",), made.kafka, RESERVED_FOR_CLIENTS)
    for name in made.kafka:
        if security_name(name) not in known:
            reader.problem(("kafka", name), "unknown client setting", unknown_setting(name, known).hint)
    if _has_missing_secrets(reader, made):
        return
    for source in made.sources.values():
        path = ("sources", source.name) if ("source",) not in reader.lines else ("source",)
        _try(reader, (*path, "options"), _source_check(made, source))
    for output in made.outputs.values():
        where = ("sink",) if ("outputs",) not in reader.lines else ("outputs", output.name, "sink")
        _try(reader, where, _sink_check(made, output))
    _check_speculation(reader, made)
    remote = made.master is not None and not made.master.startswith("local")
    if remote and any(is_sqlite(output) for output in made.outputs.values()):
        reader.problem(("master",), SQLITE_IS_LOCAL, "Use PostgreSQL, or master: local[*].")


def _has_missing_secrets(reader: Reader, made: Pipeline) -> bool:
    """Reports references such as ${env:NAME} that cannot be resolved, each with its key."""
    places: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("kafka",), made.kafka)]
    for source in made.sources.values():
        path = ("sources", source.name) if ("source",) not in reader.lines else ("source",)
        places.append(((*path, "options"), source.options))
    for output in made.outputs.values():
        where = ("sink",) if ("outputs",) not in reader.lines else ("outputs", output.name, "sink")
        places.append(((*where, "options"), output.sink.options))
        if isinstance(output.sink, DatabaseSink):
            places.append((where, {"url": output.sink.url}))
    before = len(reader.problems)
    for place, settings in places:
        for name, value in settings.items():
            for error in problems_in(value):
                reader.problem((*place, name), error.message, error.hint)
    return len(reader.problems) > before


def _check_speculation(reader: Reader, made: Pipeline) -> None:
    """Rejects speculation here; the tasks of a topic sink would reject it during the first batch."""
    if made.spark.get("spark.speculation", "").strip().lower() != "true":
        return
    for output in made.outputs.values():
        writes_topic = isinstance(output.sink, TopicSink) or made.dead_letter_sources
        if writes_topic and output.guarantee != Guarantee.AT_LEAST_ONCE:
            cause = (
                f"{output.guarantee} into a topic does not work with speculation: attempts of a task fence each other"
            )
            reader.problem(("spark", "spark.speculation"), cause, "Remove it, or use guarantee: at-least-once.")
            return


SQLITE_IS_LOCAL = "SQLite is a local file, but the tasks run on other machines"


def is_sqlite(output: Output) -> bool:
    return isinstance(output.sink, DatabaseSink) and output.sink.url.startswith("sqlite:")


def _source_check(made: Pipeline, source: Source) -> Callable[[], Any]:
    return lambda: SourceOptions.parse(source_options(made, source, BROKERS)).check_stream()


def _sink_check(made: Pipeline, output: Output) -> Callable[[], Any]:
    options = sink_options(made, output, BROKERS)
    if isinstance(output.sink, TopicSink):
        return lambda: SinkOptions.parse(options, streaming=True)
    return lambda: DatabaseOptions.parse(options)


def _try(reader: Reader, path: tuple[str, ...], attempt: Callable[[], Any]) -> None:
    try:
        attempt()
    except OttlaError as error:
        reader.problem(path, error.message, error.hint)


def source_options(made: Pipeline, source: Source, bootstrap: str) -> dict[str, str]:
    """The options for `format("ottla")`, without the group, which belongs to the query."""
    options = _client_options(made.kafka, ConsumerConfig)
    options |= {"kafka.bootstrap.servers": bootstrap, "startingOffsets": source.starting_offsets}
    if source.pattern:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    return resolve(options | dict(source.options))


def sink_options(made: Pipeline, output: Output, bootstrap: str) -> dict[str, str]:
    """The options for the sink's format."""
    sink = output.sink
    if isinstance(sink, TopicSink):
        options = _client_options(made.kafka, ProducerConfig)
        options |= {"kafka.bootstrap.servers": bootstrap, "delivery": output.guarantee}
        if sink.topic:
            options["topic"] = sink.topic
        return resolve(options | dict(sink.options))
    options = {"url": sink.url, "table": sink.table, "delivery": output.guarantee}
    if sink.upsert_keys:
        options["upsertKeys"] = ",".join(sink.upsert_keys)
    return resolve(options | dict(sink.options))


def sink_format(output: Output) -> str:
    """The name of the sink's format in Spark."""
    return "ottla" if isinstance(output.sink, TopicSink) else "ottla-database"


def batch_options(output: Output, options: Mapping[str, str], query: str, batch: int) -> dict[str, str]:
    """The options for the sink's format inside foreachBatch, with the batch id if the sink keeps a ledger."""
    if not isinstance(output.sink, TopicSink):
        return {**options, "sinkId": query, "batchId": str(batch)}
    parsed = SinkOptions.parse(options, streaming=True)
    if parsed.delivery != Guarantee.EXACTLY_ONCE:
        return dict(options)
    name = parsed.sink_name or default_sink_name(query)
    return {**options, "sinkName": name, "queryId": query, "batchId": str(batch)}


def _client_options(kafka: Mapping[str, str], config_class: type[Any]) -> dict[str, str]:
    """The pipeline's client settings that this kind of client has."""
    known = settings_of(config_class)
    named = {security_name(name): value for name, value in kafka.items()}
    return {f"kafka.{name}": value for name, value in named.items() if name in known}
