"""Converts the keys and values of a pipeline's file to a Pipeline, and reports every mistake with its place. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.client.core.guarantees import Guarantee
from ottla.pipeline.definition import model
from ottla.pipeline.definition.model import DatabaseSink, Output, Pipeline, Source, Table, TopicSink
from ottla.pipeline.definition.options import (
    RESERVED_FOR_DATABASES,
    RESERVED_FOR_SOURCES,
    RESERVED_FOR_TOPICS,
    STARTING_TIMES,
    check_options,
    reject_reserved_options,
)
from ottla.pipeline.definition.problems import PipelineError, Reader

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TOP = {
    "name": "the pipeline's name",
    "description": "a description for readers",
    "source": "the topic to read, if there is only one source",
    "sources": "the topics to read, by their names in SQL",
    "tables": "files to join with, by their names in SQL",
    "sql": "the transformation, in Spark SQL",
    "sink": "the topic or table to write to",
    "outputs": "several transformations with a sink each, by name",
    "guarantee": "exactly-once, at-least-once or at-most-once",
    "checkpoint": "the directory that holds the pipeline's progress",
    "trigger": "how often a batch starts, for example 5 seconds; by default as soon as the last one has ended",
    "output_mode": "append, complete or update",
    "bootstrap": "the brokers, as host:port",
    "kafka": "settings of the Kafka clients, under Kafka's names",
    "spark": "settings of the Spark session",
    "master": "the Spark cluster, for example spark://host:7077 or local[4]",
}
OUTPUT = {key: TOP[key] for key in ("sql", "sink", "guarantee", "trigger", "output_mode")}
SOURCE = {
    "topic": "the topic",
    "topics": "several topics",
    "pattern": "topics whose names match a regular expression",
    "name": "the source's name in SQL",
    "schema": "the columns of JSON values, for example `id bigint, item string`",
    "watermark": "the column with the event time, and how late it may be: at 10 minutes",
    "on_bad_record": "fail, skip or dead-letter",
    "dead_letter_topic": "the topic for bad records",
    "starting_offsets": "earliest, latest, or JSON in the format of Spark's Kafka source",
    "metadata": "true adds _key, _topic, _partition, _offset and _timestamp",
    "options": "more options of the source, for example maxOffsetsPerTrigger",
}
TABLE = {
    "path": "the file or directory",
    "format": "csv, json, parquet, …",
    "schema": "its columns, for example `item string, price decimal(10, 2)`",
    "options": "options of Spark's reader, for example header",
}
TOPIC_SINK = {
    "topic": "the topic",
    "topic_column": "the column with the topic of each row",
    "key": "the columns that become the key",
    "options": "more options of the sink",
}
DATABASE_SINK = {
    "url": "sqlite:///path or postgresql://host/database",
    "table": "the table",
    "upsert_keys": "the columns that identify a row: an existing row is replaced",
    "options": "more options of the sink",
}


def read_pipeline(
    document: Any,
    file: str,
    *,
    lines: Mapping[tuple[str, ...], int] | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Pipeline:
    """The pipeline that a document describes. `functions` are the transformations of outputs without SQL."""
    reader = Reader(file, lines or {})
    top = reader.mapping(document, (), TOP)
    if not top and not reader.problems:
        reader.problem((), "the file is empty", "A pipeline needs a source, sql and a sink.")
    name = _name(reader, top)
    sources = _sources(reader, top)
    tables = {
        key: _table(reader, key, value, ("tables", key))
        for key, value in reader.mapping(top.get("tables"), ("tables",)).items()
    }
    for key in [*sources, *tables]:
        if not VIEW.fullmatch(key):
            where = "tables" if key in tables else "sources"
            reader.problem((where, key), "is not a valid table name in SQL", "Use letters, digits and _.")
    _refuse_duplicates(reader, sources, tables)
    outputs = _outputs(reader, top, name, functions or {}, (*sources, *tables))
    made = Pipeline(
        name=name,
        file=file,
        sources=sources,
        tables=tables,
        outputs=outputs,
        checkpoint=reader.text(top.get("checkpoint"), ("checkpoint",)) or f"checkpoints/{name}",
        bootstrap=reader.text(top.get("bootstrap"), ("bootstrap",)),
        kafka=reader.settings(top.get("kafka"), ("kafka",)),
        spark=reader.settings(top.get("spark"), ("spark",)),
        master=reader.text(top.get("master"), ("master",)),
        lines=reader.lines,
    )
    _refuse_loops(reader, made)
    if not reader.problems:
        check_options(reader, made)
    if reader.problems:
        raise PipelineError(reader.problems)
    return made


def _name(reader: Reader, top: Mapping[str, Any]) -> str:
    given = reader.text(top.get("name"), ("name",))
    name = given or re.sub(r"[^A-Za-z0-9._-]+", "-", reader.file.rsplit("/", 1)[-1].rsplit(".", 1)[0]).strip("-.")
    if not NAME.fullmatch(name):
        reader.problem(
            ("name",), f"{name!r} is not a valid pipeline name", "Use up to 100 letters, digits, '.', '_' and '-'."
        )
    return name


def _sources(reader: Reader, top: Mapping[str, Any]) -> dict[str, Source]:
    single, several = top.get("source"), top.get("sources")
    if single is not None and several is not None:
        reader.problem(("source",), "source and sources cannot be combined", "Put all of them under sources.")
    if single is None and several is None:
        reader.problem((), "there is no source", "Add one: source: {topic: orders, schema: id bigint}.")
    found = {}
    if single is not None:
        source = _source(reader, None, single, ("source",))
        found[source.name] = source
    else:
        for key, value in reader.mapping(several, ("sources",)).items():
            found[key] = _source(reader, key, value, ("sources", key))
    return found


def _refuse_duplicates(reader: Reader, sources: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    """SQL ignores case, and of two tables with one name only the second would be visible."""
    seen: dict[str, tuple[str, str]] = {}
    for where, names in (("sources", sources), ("tables", tables)):
        for name in names:
            if name.lower() in seen:
                kind, other = seen[name.lower()]
                cause = f"a {kind[:-1]} has this name too" if other == name else f"is the same name in SQL as {other}"
                reader.problem((where, name), cause, "Rename one of them.")
            seen.setdefault(name.lower(), (where, name))


def _refuse_loops(reader: Reader, made: Pipeline) -> None:
    """A query must not read its own output, and bad records must not mix with good rows."""
    for output in made.outputs.values():
        if not isinstance(output.sink, TopicSink) or not output.sink.topic:
            continue
        path = ("outputs", output.name, "sink") if ("outputs",) in reader.lines else ("sink",)
        for source in made.sources.values():
            if output.sink.topic == source.dead_letter_topic:
                cause = f"its topic {output.sink.topic} is also the dead_letter_topic of {source.name}"
                reader.problem(path, cause, "Use another topic.")
            if _reads(made, output, source) and _is_among(output.sink.topic, source):
                cause = f"its topic {output.sink.topic} is also a source: the pipeline would read its own output"
                reader.problem(path, cause, "Use another topic.")


def _reads(made: Pipeline, output: Output, source: Source) -> bool:
    """Whether an output reads a source; for SQL, whether the source's name occurs in it."""
    if output.sql is None or len(made.sources) == 1:
        return source.name in (output.sources or made.sources)
    return re.search(rf"\b{re.escape(source.name)}\b", output.sql, re.IGNORECASE) is not None


def _is_among(topic: str, source: Source) -> bool:
    if not source.pattern or not topic:
        return topic in source.topics
    try:
        return re.fullmatch(source.pattern, topic) is not None
    except re.error:
        return False  # reported elsewhere


def _source(reader: Reader, name: str | None, value: Any, path: tuple[str, ...]) -> Source:
    if isinstance(value, str):
        value = {"topic": value}
    keys = reader.mapping(value, path, SOURCE)
    listed = [reader.topic(item, (*path, "topics")) for item in reader.texts(keys.get("topics"), path)]
    topics = tuple(item for item in listed if item)
    one = reader.topic(keys.get("topic"), (*path, "topic"))
    topics = (one, *topics) if one else topics
    pattern = reader.text(keys.get("pattern"), (*path, "pattern")) or ""
    if sum(key in keys for key in ("topic", "topics", "pattern")) != 1:
        reader.problem(path, "needs exactly one of topic, topics and pattern", "Set one of them.")
    if name is None:
        fallback = re.sub(r"\W+", "_", topics[0] if topics else "source")
        name = reader.text(keys.get("name"), (*path, "name")) or fallback
        if not VIEW.fullmatch(name):
            name = f"_{name}" if "name" not in keys else name
    elif "name" in keys:
        reader.problem((*path, "name"), f"the source is already named {name}", "Remove this key.")
    schema = reader.text(keys.get("schema"), (*path, "schema"))
    policy = reader.text(keys.get("on_bad_record"), (*path, "on_bad_record"), among=model.BAD_RECORD_POLICIES)
    dead = reader.topic(keys.get("dead_letter_topic"), (*path, "dead_letter_topic"))
    if policy == model.DEAD_LETTER and dead is None:
        reader.problem((*path, "on_bad_record"), "dead-letter needs a topic", "Add dead_letter_topic: NAME.")
    if dead is not None and policy != model.DEAD_LETTER:
        reader.problem(
            (*path, "dead_letter_topic"),
            "has no effect without on_bad_record: dead-letter",
            "Add it, or remove this key.",
        )
    if dead is not None and dead in topics:
        reader.problem((*path, "dead_letter_topic"), "is the topic that the source reads", "Use another topic.")
    if schema is None:
        for key in ("on_bad_record", "dead_letter_topic", "metadata"):
            if keys.get(key):
                reader.problem((*path, key), "has no effect without schema", "Add schema, or remove this key.")
    options = reader.settings(keys.get("options"), (*path, "options"))
    reject_reserved_options(reader, (*path, "options"), options, RESERVED_FOR_SOURCES)
    if "starting_offsets" in keys:
        reject_reserved_options(reader, (*path, "options"), options, STARTING_TIMES)
    return Source(
        name=name,
        topics=topics,
        pattern=pattern,
        schema=schema,
        watermark=_watermark(reader, keys.get("watermark"), (*path, "watermark")),
        on_bad_record=policy or model.FAIL,
        dead_letter_topic=dead,
        starting_offsets=reader.text(keys.get("starting_offsets"), (*path, "starting_offsets")) or "earliest",
        metadata=reader.flag(keys.get("metadata"), (*path, "metadata")),
        options=options,
    )


def _watermark(reader: Reader, value: Any, path: tuple[str, ...]) -> tuple[str, str] | None:
    """The column and the delay, from `at 10 minutes` or from the keys column and delay."""
    if value is None:
        return None
    if isinstance(value, str):
        first, _, rest = value.strip().partition(" ")
        value = {"column": first, "delay": rest}
    keys = reader.mapping(value, path, {"column": "", "delay": ""})
    column = reader.text(keys.get("column"), path)
    delay = reader.interval(keys.get("delay") or None, path)
    if column is None or delay is None:
        if not reader.problems:
            reader.problem(
                path, "has no column or no delay", "Set the column and how late it may be, for example at 10 minutes."
            )
        return None
    return column, delay


def _table(reader: Reader, name: str, value: Any, path: tuple[str, ...]) -> Table:
    keys = reader.mapping({"path": value} if isinstance(value, str) else value, path, TABLE)
    where = reader.text(keys.get("path"), (*path, "path"))
    if where is None:
        reader.problem(path, "has no path", "Add the file or directory, for example path: items.csv.")
    kind = reader.text(keys.get("format"), (*path, "format")) or _format_of(where or "")
    return Table(
        name=name,
        path=where or "",
        format=kind,
        schema=reader.text(keys.get("schema"), (*path, "schema")),
        options=reader.settings(keys.get("options"), (*path, "options")),
    )


def _format_of(path: str) -> str:
    ending = path.rstrip("/").rsplit(".", 1)[-1].lower()
    return {"json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "orc": "orc"}.get(ending, "csv")


def _outputs(
    reader: Reader,
    top: Mapping[str, Any],
    name: str,
    functions: Mapping[str, Callable[..., Any]],
    inputs: Sequence[str],
) -> dict[str, Output]:
    several = reader.mapping(top.get("outputs"), ("outputs",))
    if several:
        for key in ("sql", "sink"):
            if key in top:
                reader.problem((key,), f"{key} and outputs cannot be combined", "Put it under one of the outputs.")
        found = {}
        for key, value in several.items():
            path = ("outputs", key)
            if not NAME.fullmatch(key) or key.startswith("dead-letter."):
                reader.problem(path, "is not a valid output name", "Use up to 100 letters, digits, '.', '_' and '-'.")
            keys = reader.mapping(
                value, path, OUTPUT if key not in functions else {**OUTPUT, "sources": "", "parameters": ""}
            )
            inherited = {each: top[each] for each in ("guarantee", "trigger", "output_mode") if each in top}
            found[key] = _output(reader, key, {**inherited, **keys}, path, functions.get(key), inputs)
        return found
    return {name: _output(reader, name, top, (), functions.get(name), inputs)}


def _output(
    reader: Reader,
    name: str,
    keys: Mapping[str, Any],
    path: tuple[str, ...],
    function: Callable[..., Any] | None,
    inputs: Sequence[str],
) -> Output:
    sql = reader.text(keys.get("sql"), (*path, "sql"))
    if sql is None and function is None:
        reader.problem(path, "there is no sql", "Add the transformation, for example sql: select * from …")
    guarantee = reader.text(keys.get("guarantee"), (*path, "guarantee"), among=tuple(Guarantee))
    mode = reader.text(keys.get("output_mode"), (*path, "output_mode"), among=model.OUTPUT_MODES) or "append"
    sink = _sink(reader, keys.get("sink"), (*path, "sink"))
    if mode == "update" and isinstance(sink, DatabaseSink) and not sink.upsert_keys:
        reader.problem(
            (*path, "output_mode"),
            "update needs upsert_keys, to know which rows to replace",
            "Add upsert_keys to the sink.",
        )
    if mode == "complete" and isinstance(sink, DatabaseSink) and guarantee not in (None, Guarantee.EXACTLY_ONCE):
        reader.problem(
            (*path, "output_mode"),
            "complete needs guarantee: exactly-once, because it replaces the table in one transaction",
            "Set guarantee: exactly-once, or use output_mode: append or update.",
        )
    elif mode != "append" and guarantee == Guarantee.AT_MOST_ONCE:
        reader.problem(
            (*path, "output_mode"), f"{mode} does not work with guarantee: at-most-once", "Use another guarantee."
        )
    return Output(
        name=name,
        sink=sink,
        sql=sql,
        function=function,
        sources=tuple(keys.get("sources") or inputs) if function is not None else (),
        parameters=tuple(keys.get("parameters") or keys.get("sources") or inputs) if function is not None else (),
        guarantee=Guarantee(guarantee or Guarantee.EXACTLY_ONCE),
        trigger=reader.interval(keys.get("trigger"), (*path, "trigger")),
        output_mode=mode,
    )


def _sink(reader: Reader, value: Any, path: tuple[str, ...]) -> TopicSink | DatabaseSink:
    if value is None:
        reader.problem(path, "there is no sink", "Add a topic or a table, for example sink: {topic: results}.")
        return TopicSink("")
    if isinstance(value, str):
        value = {"topic": value}
    is_database = isinstance(value, Mapping) and ("url" in value or "table" in value)
    keys = reader.mapping(value, path, DATABASE_SINK if is_database else TOPIC_SINK)
    options = reader.settings(keys.get("options"), (*path, "options"))
    reject_reserved_options(
        reader, (*path, "options"), options, RESERVED_FOR_DATABASES if is_database else RESERVED_FOR_TOPICS
    )
    if is_database:
        url, table = reader.text(keys.get("url"), (*path, "url")), reader.text(keys.get("table"), (*path, "table"))
        for key, given in (("url", url), ("table", table)):
            if given is None:
                reader.problem(path, f"has no {key}", f"Add the key {key}: {DATABASE_SINK[key]}.")
        return DatabaseSink(
            url or "", table or "", reader.texts(keys.get("upsert_keys"), (*path, "upsert_keys")), options
        )
    topic = reader.topic(keys.get("topic"), (*path, "topic"))
    column = reader.text(keys.get("topic_column"), (*path, "topic_column"))
    if "topic" in keys and "topic_column" in keys:
        reader.problem((*path, "topic_column"), "topic and topic_column cannot be combined", "Remove one of them.")
    if "topic" not in keys and "topic_column" not in keys:
        reader.problem(path, "has neither a topic nor a table", "Use {topic: results} or {url: …, table: …}.")
    return TopicSink(topic or "", reader.texts(keys.get("key"), (*path, "key")), options, column or "")
