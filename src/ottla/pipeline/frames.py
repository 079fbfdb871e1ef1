"""The DataFrames of a pipeline: records parsed, watermarks set, SQL or functions applied, rows fit for their sink."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.errors import ConfigError
from ottla.pipeline import model
from ottla.pipeline.model import Output, Pipeline, Source, TopicSink
from ottla.pipeline.options import sink_options, source_options
from ottla.pipeline.problems import PipelineError, Problem
from ottla.pipeline.python_file import carry_to_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORRUPT = "_ottla_corrupt"
PARSED = "_ottla_parsed"
VALUE, END = "_ottla_value", "_ottla_end"
"""Spark's parser stops where its object ends and drops the rest. So a value is parsed as a list in one field of two:
what comes after it is then seen, as a syntax error, as a second item, or because the second field is not there."""
ROWS_OUT, ROWS_BAD = "ottla_out", "ottla_bad_"
"""Names of the counts that Spark reports with each batch."""
RECORD_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")


class Frames:
    """Builds the DataFrames of one pipeline on one Spark session."""

    def __init__(self, spark: "SparkSession", pipeline: Pipeline, bootstrap: str, *, stand_in: bool = False) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.bootstrap = bootstrap
        self.stand_in = stand_in
        """Whether the sources are replaced by empty streams with the same columns, to look at the rest alone."""

    def output(self, output: Output) -> "DataFrame":
        """What an output writes, before it is made fit for the sink."""
        inputs = self._inputs(output)
        if output.sql is not None:
            for name, frame in inputs.items():
                frame.createOrReplaceTempView(name)
            return self.spark.sql(output.sql)
        assert output.function is not None
        carry_to_workers(Path(self.pipeline.file))
        wanted = {name: inputs[name] for name in output.sources}
        is_single = len(wanted) == 1 and not self.pipeline.tables
        found: DataFrame = output.function(*wanted.values()) if is_single else output.function(**wanted)
        if not hasattr(found, "writeStream"):
            raise self._mistake(
                ("outputs", output.name),
                f"the function returned {type(found).__name__}, not a DataFrame",
                "Return a streaming DataFrame.",
            )
        return found

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

    def records(self, source: Source, group: str) -> "DataFrame":
        """The records as they are in their topics."""
        options = source_options(self.pipeline, source, self.bootstrap)
        if self.stand_in:
            columns = RECORD_COLUMNS + ", timestampType int"
            if options.get("includeHeaders", "").lower() == "true":
                columns += ", headers array<struct<key: string, value: binary>>"
            return empty_stream(self.spark, columns)
        options.setdefault("kafka.group.id", group)
        return self.spark.readStream.format("ottla").options(**options).load()

    def source(self, source: Source, group: str) -> "DataFrame":
        """The table that SQL and functions see."""
        frame = self.records(source, group)
        if source.schema is not None:
            frame = self._good_records(source, frame)
        if source.watermark is not None:
            self._check_watermark(source, frame)
            frame = frame.withWatermark(*source.watermark)
        return frame

    def bad_records(self, source: Source) -> "DataFrame":
        """What does not parse, as it came, with the reason and its place in headers."""
        from pyspark.sql import functions as f

        frame = self._parsed(source, self.records(source, self.pipeline.group_of(model.dead_letter_query(source))))
        bad = frame.filter(is_bad())
        headers = {
            "ottla.error": reason(),
            "ottla.topic": f.col("topic"),
            "ottla.partition": f.col("partition").cast("string"),
            "ottla.offset": f.col("offset").cast("string"),
        }
        pairs = [
            f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in headers.items()
        ]
        return bad.select("key", "value", f.array(*pairs).alias("headers"))

    def _parsed(self, source: Source, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f
        from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

        assert source.schema is not None
        schema = self._schema(source.schema, self._path(source, "schema"))
        value = StructField(VALUE, ArrayType(schema))
        fields = [value, StructField(END, BooleanType()), StructField(CORRUPT, StringType())]
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        text = f.concat(f.lit(f'{{"{VALUE}":['), f.col("value").cast("string"), f.lit(f'],"{END}":true}}'))
        return frame.withColumn(PARSED, f.from_json(text, StructType(fields), options))

    def _good_records(self, source: Source, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        frame = self._parsed(source, frame)
        if source.on_bad_record == model.FAIL:
            place = f.concat(f.col("topic"), f.lit("-"), f.col("partition"), f.lit(" at offset "), f.col("offset"))
            message = f.concat(f.lit("bad record in "), place, f.lit(": "), reason())
            frame = frame.filter(f.when(is_bad(), f.raise_error(message).cast("boolean")).otherwise(f.lit(True)))
        else:
            frame = frame.observe(ROWS_BAD + source.name, f.count(f.when(is_bad(), 1)).alias("rows"))
            frame = frame.filter(~is_bad())
        fields = self._schema(source.schema or "", ()).fieldNames()
        columns = [the_value().getField(name).alias(name) for name in fields]
        if source.metadata:
            columns.append(f.col("key").cast("string").alias("_key"))
            columns += [f.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")]
        return frame.select(*columns)

    def _check_watermark(self, source: Source, frame: "DataFrame") -> None:
        assert source.watermark is not None
        column = source.watermark[0]
        types = dict(frame.dtypes)
        if column not in types:
            cause = f"there is no column {column}; there are {', '.join(types)}"
            raise self._mistake(self._path(source, "watermark"), cause, "Name a column of the schema.")
        if types[column] not in ("timestamp", "timestamp_ntz"):
            cause = f"column {column} is {types[column]}, and a watermark needs a timestamp"
            raise self._mistake(self._path(source, "watermark"), cause, f"Make it `{column} timestamp` in the schema.")

    def _schema(self, text: str, path: tuple[str, ...]) -> "StructType":
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            schema = StructType.fromDDL(text)
        except PySparkException as error:
            cause = " ".join(str(error).split("== SQL ==")[0].split())
            raise self._mistake(
                path, f"{text!r} is no list of columns: {cause}", "As `id bigint, item string`."
            ) from None
        if not isinstance(schema, StructType):
            raise self._mistake(path, f"{text!r} is no list of columns", "Write them as `id bigint, item string`.")
        return schema

    def _path(self, source: Source, key: str) -> tuple[str, ...]:
        return ("source", key) if ("source",) in self.pipeline.lines else ("sources", source.name, key)

    def _mistake(self, path: tuple[str, ...], cause: str, hint: str) -> PipelineError:
        line = self.pipeline.line_of(*path)
        return PipelineError([Problem(self.pipeline.file, line, ".".join(path), cause, hint)])

    # --- rows for the sink --------------------------------------------------------------------------------

    def for_sink(self, output: Output, frame: "DataFrame") -> "DataFrame":
        """The rows as the sink takes them: a topic gets key and value, a database gets the columns."""
        sink = output.sink
        if not isinstance(sink, TopicSink):
            return frame
        return self._for_topic(output, sink, frame)

    def _for_topic(self, output: Output, sink: TopicSink, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        types = dict(frame.dtypes)
        path = ("outputs", output.name, "sink", "key") if len(self.pipeline.outputs) > 1 else ("sink", "key")
        missing = [name for name in sink.key if name not in types]
        if missing:
            cause = f"there is no column {missing[0]} in the result; there are {', '.join(types)}"
            raise self._mistake(path, cause, "Select it, or name another column.")
        is_kafka = "value" in types and all(name in KAFKA_COLUMNS for name in types)
        if is_kafka and types["value"] in ("string", "binary"):
            if sink.key:
                raise self._mistake(path, "the result has Kafka's columns already", "Call a column of it key.")
            return frame
        value = f.to_json(f.struct(*[f.col(quote(name)) for name in types]), {"ignoreNullFields": "false"})
        if not sink.key:
            return frame.select(value.alias("value"))
        if len(sink.key) == 1:
            key = f.col(quote(sink.key[0])).cast("string")
        else:
            key = f.to_json(f.struct(*[f.col(quote(name)) for name in sink.key]), {"ignoreNullFields": "false"})
        return frame.select(key.alias("key"), value.alias("value"))

    def sink_options(self, output: Output, rows: "DataFrame") -> dict[str, str]:
        """The options for the sink's format: rows in Kafka's columns keep their own timestamps if they have any."""
        options = sink_options(self.pipeline, output, self.bootstrap)
        is_said = any(name.lower() == "includetimestamp" for name in options)
        if isinstance(output.sink, TopicSink) and "timestamp" in rows.columns and not is_said:
            options["includeTimestamp"] = "true"
        return options


def counted(frame: "DataFrame") -> "DataFrame":
    """Counts the rows that go to the sink: Spark itself does not know how many a sink in Python got."""
    from pyspark.sql import functions as f

    return frame.observe(ROWS_OUT, f.count(f.lit(1)).alias("rows"))


def is_bad() -> "Column":
    from pyspark.sql import functions as f

    parsed = f.col(PARSED)
    is_alone = f.coalesce(f.size(parsed.getField(VALUE)) == 1, f.lit(False))
    is_whole = is_alone & the_value().isNotNull() & parsed.getField(END).isNotNull() & parsed.getField(CORRUPT).isNull()
    return f.col("value").isNull() | ~is_whole


def the_value() -> "Column":
    from pyspark.sql import functions as f

    return f.get(f.col(PARSED).getField(VALUE), f.lit(0))  # null where there is none, in ANSI mode too


def reason() -> "Column":
    from pyspark.sql import functions as f

    shown = f.substring(f.col("value").cast("string"), 1, 200)
    return f.when(f.col("value").isNull(), f.lit("it has no value")).otherwise(
        f.concat(f.lit("its value is not JSON with the columns of the schema: "), shown)
    )


def empty_stream(spark: "SparkSession", columns: str) -> "DataFrame":
    """A stream that has these columns and no rows: enough for Spark to check a query."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    rate = spark.readStream.format("rate").option("rowsPerSecond", "1").load().filter(f.lit(False))
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return rate.select(*[f.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields])


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check_sink(frames: Frames, output: Output, frame: "DataFrame") -> None:
    """Looks whether the sink can take these columns, and changes nothing in it."""
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
            cause = f"upsert_keys names {key}, which the result does not have; it has {', '.join(frame.columns)}"
            raise ConfigError(cause, "Select it, or name another column.")
    file = Path(options.url.removeprefix("sqlite:///")) if options.url.startswith("sqlite:") else None
    dialect = SQLITE
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"there is no directory {file.parent} for {options.url}", "Make it.")
    if file is None or file.exists():  # else to look would make it
        with contextlib.closing(connect(options)) as database:
            dialect = database.dialect
            found = database.find_table(options.table)
            if found is not None:
                taken = check_columns(frame.schema, options.table, database.columns(found), dialect)
                check_keys(database, found, [taken[names[key.lower()]] for key in options.upsert_keys])
                return
    for field in frame.schema.fields:
        column_type(field.dataType, dialect, field.name)
