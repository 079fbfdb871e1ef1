"""Builds a pipeline's DataFrames: parses records, sets watermarks, applies SQL or functions, formats rows for sinks."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.errors import ConfigError
from ottla.pipeline.definition import model
from ottla.pipeline.definition.model import Output, Pipeline, Source, TopicSink
from ottla.pipeline.definition.options import sink_options, source_options
from ottla.pipeline.definition.problems import PipelineError, Problem
from ottla.pipeline.definition.python_file import carry_to_workers
from ottla.pipeline.running.bad_records import bad_column, is_bad, parsed, parsed_value, reason
from ottla.pipeline.running.progress import ROWS_BAD, ROWS_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RECORD_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")


class Frames:
    """Builds the DataFrames of one pipeline on one Spark session."""

    def __init__(self, spark: "SparkSession", pipeline: Pipeline, bootstrap: str, *, stand_in: bool = False) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.bootstrap = bootstrap
        self.stand_in = stand_in
        """Whether empty streams with the same columns replace the sources, to check everything else."""

    def output(self, output: Output) -> "DataFrame":
        """The result of an output, before it is formatted for its sink."""
        inputs = self._inputs(output)
        if output.sql is not None:
            for name, frame in inputs.items():
                frame.createOrReplaceTempView(name)
            return self._sql(output, output.sql)
        assert output.function is not None
        carry_to_workers(Path(self.pipeline.file))
        wanted = {its: inputs[name] for its, name in zip(output.parameters, output.sources, strict=True)}
        is_single = len(wanted) == 1 and not self.pipeline.tables
        found: DataFrame = output.function(*wanted.values()) if is_single else output.function(**wanted)
        if not hasattr(found, "writeStream"):
            raise self._mistake(
                ("outputs", output.name),
                f"the function returned {type(found).__name__}, not a DataFrame",
                "Return a streaming DataFrame.",
            )
        return found

    def _sql(self, output: Output, sql: str) -> "DataFrame":
        from pyspark.errors import AnalysisException

        try:
            return self.spark.sql(sql)
        except AnalysisException as error:
            missing = error.getMessageParameters() or {} if error.getCondition() == NO_TABLE else {}
            if not missing:
                raise
            # A topic's name is not always a valid table name: orders.eu is the table orders_eu.
            name = missing.get("relationName", "").replace("`", "")
            topics = {topic: source.name for source in self.pipeline.sources.values() for topic in source.topics}
            if name in topics:
                hint = (
                    f"The table of topic {name} is named {topics[name]}. To choose another name, set the source's name."
                )
            else:
                hint = f"The tables are {', '.join((*self.pipeline.sources, *self.pipeline.tables))}."
            path = ("outputs", output.name, "sql") if ("outputs",) in self.pipeline.lines else ("sql",)
            raise self._mistake(path, f"there is no table {name}", hint) from None

    def _inputs(self, output: Output) -> "dict[str, DataFrame]":
        wanted = output.sources or (*self.pipeline.sources, *self.pipeline.tables)
        inputs: dict[str, Any] = {}
        for name in wanted:
            if name in self.pipeline.sources:
                source = self.pipeline.sources[name]
                inputs[name] = self.source(source, self.pipeline.group_of(output.name))
            else:
                inputs[name] = self.table(name)
        return inputs

    def table(self, name: str) -> "DataFrame":
        table = self.pipeline.tables[name]
        reader = self.spark.read.format(table.format)
        if table.format == "csv":
            reader = reader.option("header", "true").option("inferSchema", "true")
        if table.schema is not None:
            reader = reader.schema(self._schema(table.schema, ("tables", name, "schema")))
        return reader.options(**table.options).load(table.path)

    # --- records ------------------------------------------------------------------------------------------

    def records(self, source: Source, group: str, *, headers: bool = False) -> "DataFrame":
        """The unparsed records of a source; `headers` adds that column."""
        options = source_options(self.pipeline, source, self.bootstrap)
        if headers:
            options = {name: value for name, value in options.items() if name.lower() != "includeheaders"}
            options["includeHeaders"] = "true"
        if self.stand_in:
            columns = RECORD_COLUMNS + ", timestampType int"
            if any(name.lower() == "includeheaders" and value.lower() == "true" for name, value in options.items()):
                columns += ", headers array<struct<key: string, value: binary>>"
            return empty_stream(self.spark, columns)
        options.setdefault("kafka.group.id", group)
        return self.spark.readStream.format("ottla").options(**options).load()

    def source(self, source: Source, group: str) -> "DataFrame":
        """The table of a source, as SQL and functions see it."""
        frame = self.records(source, group)
        if source.schema is not None:
            frame = self._good_records(source, frame)
        if source.watermark is not None:
            self._check_watermark(source, frame)
            frame = frame.withWatermark(*source.watermark)
        return frame

    def bad_records(self, source: Source) -> "DataFrame":
        """The records that cannot be parsed, unchanged, with the reason and their position in more headers."""
        from pyspark.sql import functions as f

        schema = self._schema_of(source)
        records = self.records(source, self.pipeline.group_of(model.dead_letter_query(source)), headers=True)
        added = {
            "ottla.error": reason(schema),
            "ottla.column": bad_column(schema),
            "ottla.topic": f.col("topic"),
            "ottla.partition": f.col("partition").cast("string"),
            "ottla.offset": f.col("offset").cast("string"),
        }
        pairs = [f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in added.items()]
        headers = f.concat(f.col("headers"), f.array(*pairs))
        bad = parsed(records, schema).filter(is_bad())
        return bad.select("key", "value", headers.alias("headers"), "timestamp")

    def _good_records(self, source: Source, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        schema = self._schema_of(source)
        frame = parsed(frame, schema)
        if source.on_bad_record == model.FAIL:
            place = f.concat(f.col("topic"), f.lit("-"), f.col("partition"), f.lit(" at offset "), f.col("offset"))
            message = f.concat(f.lit("bad record in "), place, f.lit(": "), reason(schema))
            frame = frame.filter(f.when(is_bad(), f.raise_error(message).cast("boolean")).otherwise(f.lit(True)))
        else:
            frame = frame.observe(ROWS_BAD + source.name, f.count(f.when(is_bad(), 1)).alias("rows"))
            frame = frame.filter(~is_bad())
        columns = [parsed_value().getField(name).alias(name) for name in schema.fieldNames()]
        if source.metadata:
            columns.append(f.col("key").cast("string").alias("_key"))
            columns += [f.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")]
        return frame.select(*columns)

    def _check_watermark(self, source: Source, frame: "DataFrame") -> None:
        assert source.watermark is not None
        column = source.watermark[0]
        types = dict(frame.dtypes)
        if column not in types:
            cause = f"there is no column {column}; the columns are {', '.join(types)}"
            raise self._mistake(self._path(source, "watermark"), cause, "Use a column of the schema.")
        if types[column] not in ("timestamp", "timestamp_ntz"):
            cause = f"column {column} has type {types[column]}; a watermark needs a timestamp"
            raise self._mistake(
                self._path(source, "watermark"), cause, f"Declare it as `{column} timestamp` in the schema."
            )

    def _schema_of(self, source: Source) -> "StructType":
        """The columns of a source's JSON values."""
        assert source.schema is not None
        return self._schema(source.schema, self._path(source, "schema"))

    def _schema(self, text: str, path: tuple[str, ...]) -> "StructType":
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            schema = StructType.fromDDL(text)
        except PySparkException as error:
            cause = " ".join(str(error).split("== SQL ==")[0].split())
            raise self._mistake(
                path, f"{text!r} is not a list of columns: {cause}", "Use the form `id bigint, item string`."
            ) from None
        if not isinstance(schema, StructType):
            raise self._mistake(path, f"{text!r} is not a list of columns", "Use the form `id bigint, item string`.")
        return schema

    def _path(self, source: Source, key: str) -> tuple[str, ...]:
        return ("source", key) if ("source",) in self.pipeline.lines else ("sources", source.name, key)

    def _mistake(self, path: tuple[str, ...], cause: str, hint: str) -> PipelineError:
        line = self.pipeline.line_of(*path)
        return PipelineError([Problem(self.pipeline.file, line, ".".join(path), cause, hint)])

    # --- rows for the sink --------------------------------------------------------------------------------

    def for_sink(self, output: Output, frame: "DataFrame") -> "DataFrame":
        """The rows in the format of the sink: key and value for a topic, the columns for a database."""
        sink = output.sink
        if not isinstance(sink, TopicSink):
            return frame
        return self._for_topic(output, sink, frame)

    def _for_topic(self, output: Output, sink: TopicSink, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        types = dict(frame.dtypes)
        base = ("outputs", output.name, "sink") if len(self.pipeline.outputs) > 1 else ("sink",)
        path = (*base, "key")
        for name, place in [*((name, path) for name in sink.key), (sink.topic_column, (*base, "topic_column"))]:
            if name and name not in types:
                cause = f"the result has no column {name}; its columns are {', '.join(types)}"
                raise self._mistake(place, cause, "Select it, or use another column.")
        if sink.topic_column:
            if not types[sink.topic_column].startswith("string"):
                cause = f"column {sink.topic_column} has type {types[sink.topic_column]}; it must be string"
                raise self._mistake((*base, "topic_column"), cause, f"Cast it: CAST({sink.topic_column} AS STRING).")
            del types[sink.topic_column]
        topic = [f.col(quote(sink.topic_column)).alias("topic")] if sink.topic_column else []
        is_kafka = "value" in types and all(name in KAFKA_COLUMNS for name in types)
        if is_kafka and types["value"] in ("string", "binary"):
            if sink.key:
                raise self._mistake(
                    path,
                    "has no effect: the result has Kafka's columns already",
                    "Select the key as a column named key.",
                )
            return frame.select(*[f.col(name) for name in types if name != "topic"], *topic) if topic else frame
        value = f.to_json(f.struct(*[f.col(quote(name)) for name in types]), {"ignoreNullFields": "false"})
        if not sink.key:
            return frame.select(value.alias("value"), *topic)
        if len(sink.key) == 1:
            key = f.col(quote(sink.key[0])).cast("string")
        else:
            key = f.to_json(f.struct(*[f.col(quote(name)) for name in sink.key]), {"ignoreNullFields": "false"})
        return frame.select(key.alias("key"), value.alias("value"), *topic)

    def sink_options(self, output: Output, rows: "DataFrame") -> dict[str, str]:
        """The options for the sink's format. A column timestamp is written unless includeTimestamp is set."""
        options = sink_options(self.pipeline, output, self.bootstrap)
        is_set = any(name.lower() == "includetimestamp" for name in options)
        if isinstance(output.sink, TopicSink) and "timestamp" in rows.columns and not is_set:
            options["includeTimestamp"] = "true"
        return options


def counted(frame: "DataFrame") -> "DataFrame":
    """Counts the rows that are written: Spark does not report this for sinks written in Python."""
    from pyspark.sql import functions as f

    return frame.observe(ROWS_OUT, f.count(f.lit(1)).alias("rows"))


def empty_stream(spark: "SparkSession", columns: str) -> "DataFrame":
    """A stream with these columns and no rows, for Spark to check a query."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    rate = spark.readStream.format("rate").option("rowsPerSecond", "1").load().filter(f.lit(False))
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return rate.select(*[f.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields])


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check_sink(frames: Frames, output: Output, frame: "DataFrame") -> None:
    """Checks whether the sink can store these columns. Changes nothing."""
    if isinstance(output.sink, TopicSink):
        from ottla.spark.sink.options import SinkOptions
        from ottla.spark.sink.rows import used_columns

        rows = frames.for_sink(output, frame)
        used_columns(rows.schema, SinkOptions.parse(frames.sink_options(output, rows), streaming=True))
        return
    import contextlib

    from ottla.spark.database.connections import connect
    from ottla.spark.database.ledger import check_keys
    from ottla.spark.database.options import DatabaseOptions
    from ottla.spark.database.types import SQLITE, check_columns, column_type

    options = DatabaseOptions.parse(frames.sink_options(output, frame))
    names: Mapping[str, str] = {name.lower(): name for name in frame.columns}
    for key in options.upsert_keys:
        if key.lower() not in names:
            cause = f"upsert_keys has {key}, which is not a column of the result ({', '.join(frame.columns)})"
            raise ConfigError(cause, "Select it, or use another column.")
    file = Path(options.url.removeprefix("sqlite:///")) if options.url.startswith("sqlite:") else None
    dialect = SQLITE
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"directory {file.parent} of {options.url} does not exist", "Create it.")
    if file is None or file.exists():  # otherwise connecting would create it
        with contextlib.closing(connect(options)) as database:
            dialect = database.dialect
            found = database.find_table(options.table)
            if found is not None:
                taken = check_columns(frame.schema, options.table, database.columns(found), dialect)
                check_keys(database, found, [taken[names[key.lower()]] for key in options.upsert_keys])
                return
    for field in frame.schema.fields:
        column_type(field.dataType, dialect, field.name)
