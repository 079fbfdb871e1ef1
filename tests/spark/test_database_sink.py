"""The database sink under Spark: batches that fail at any point are retried, and the table has each row once."""

import contextlib
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.pipeline.definition.loading import load
from ottla.pipeline.running.checking import check
from ottla.spark.database.connections import connect
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.database.sink import DatabaseDataSource, StreamDatabaseWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES, ROWS = 3, 50
EXPECTED_SUMS = [(parity, FILES * sum(range(parity, ROWS, 2))) for parity in (0, 1)]


class FailsOnce:
    """Fails once, at one point of one batch. A file marks that it did."""

    def __init__(self, point: str, directory: str) -> None:
        self.point = point
        self.mark = Path(directory) / "failed"

    def at(self, point: str) -> None:
        if point == self.point and not self.mark.exists():
            self.mark.touch()
            raise RuntimeError(f"the machine failed {point}")


class FailingSource(DatabaseDataSource):
    """The database sink on a machine that fails once, at the point that the option `failing` names."""

    @classmethod
    def name(cls) -> str:
        return "failing-database"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        point, directory = self.options.pop("failing").split("@")
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, StreamDatabaseWriter)
        return FailingWriter(writer, FailsOnce(point, directory))


class FailingWriter(StreamDatabaseWriter):
    def __init__(self, writer: StreamDatabaseWriter, fails: FailsOnce) -> None:
        super().__init__(writer.options, writer.schema, writer.overwrite, writer.target)
        self.fails = fails

    def write(self, iterator: Any) -> WriterCommitMessage:
        message = super().write(iterator)
        self.fails.at("after the rows of a task")
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        if batchId == 1:
            self.fails.at("before the commit")
        super().commit(messages, batchId)
        if batchId == 1:
            self.fails.at("after the commit")


@pytest.fixture(scope="module")
def failing_format(spark_of_the_worker: "SparkSession") -> str:
    # The workers cannot import this file, so its classes are pickled by value.
    cloudpickle.register_pickle_by_value(sys.modules[FailingSource.__module__])
    spark_of_the_worker.dataSource.register(FailingSource)
    return FailingSource.name()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return f"postgresql://ottla@/postgres?host={request.getfixturevalue('postgres')}"


@pytest.fixture
def orders(spark: "SparkSession", tmp_path: Path) -> "DataFrame":
    """A stream of three batches, a file each."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(FILES):
        add_file(tmp_path, number)
    stream = spark.readStream.schema("id bigint, amount bigint").option("maxFilesPerTrigger", 1)
    return stream.json(str(source)).repartition(2)


def add_file(tmp_path: Path, number: int) -> None:
    rows = [{"id": number * ROWS + row, "amount": row} for row in range(ROWS)]
    (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))


def write(orders: "DataFrame", tmp_path: Path, sink: str, mode: str = "append", **options: str) -> None:
    """Runs the stream to its end, as one start of a driver would."""
    writer = orders.writeStream.format(sink).outputMode(mode).trigger(availableNow=True)
    query = writer.options(checkpointLocation=str(tmp_path / "checkpoint"), **options).start()
    query.awaitTermination()


def read(url: str, statement: str) -> list[Any]:
    with contextlib.closing(connect(DatabaseOptions.parse({"url": url, "table": "t"}))) as database:
        return database.query(statement)


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "after the rows of a task"])
def test_a_failure_at_any_point_leaves_each_row_once(
    orders: "DataFrame", failing_format: str, tmp_path: Path, url: str, point: str
) -> None:
    """Spec: D1, E10, F4. Exactly-once into a database, also if Spark repeats batches."""
    table = "t_" + point.replace(" ", "_")
    options = {"url": url, "table": table, "failing": f"{point}@{tmp_path}"}
    with pytest.raises(PySparkException, match="the machine failed"):
        write(orders, tmp_path, failing_format, **options)
    batches_before = read(url, f"select count(*) from {table}")[0][0] / ROWS
    assert batches_before == {"before": 1, "after": 2}[point.split()[0]] if "commit" in point else batches_before == 0
    write(orders, tmp_path, failing_format, **options)
    assert read(url, f"select count(*), count(distinct id), sum(amount) from {table}") == [
        (FILES * ROWS, FILES * ROWS, FILES * sum(range(ROWS)))
    ]
    assert read(url, f"select count(*) from ottla_staging_{table}") == [(0,)]
    ((batch_id, positions),) = read(url, f"select batch_id, positions from ottla_ledger where target = '{table}'")
    assert batch_id == FILES - 1
    assert json.loads(positions)["logOffset"] == FILES - 1


@pytest.mark.parametrize(
    ("delivery", "point", "expected"),
    [
        # Batch 1 fails after its rows are written: they are written again, or not.
        ("at-least-once", "before the commit", (FILES + 1) * ROWS),
        ("at-most-once", "before the commit", FILES * ROWS),
        # The machine fails inside batch 0, which has two tasks; none of them is retried.
        ("at-most-once", "after the rows of a task", None),
    ],
)
def test_the_weaker_guarantees_lose_or_duplicate_as_documented(
    orders: "DataFrame", failing_format: str, tmp_path: Path, delivery: str, point: str, expected: int | None
) -> None:
    """Spec: D1. Each guarantee is one switch."""
    url = f"sqlite:///{tmp_path}/shop.db"
    options = {"url": url, "table": "t", "failing": f"{point}@{tmp_path}", "delivery": delivery}
    with pytest.raises(PySparkException, match="the machine failed"):
        write(orders, tmp_path, failing_format, **options)
    write(orders, tmp_path, failing_format, **options)
    ((rows, distinct),) = read(url, "select count(*), count(distinct id) from t")
    if delivery == "at-most-once":
        assert rows == distinct
        assert rows == expected or expected is None
    else:
        assert rows == expected
        assert distinct == FILES * ROWS


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_a_checkpoint_from_a_backup_is_refused_and_loses_nothing(
    orders: "DataFrame", tmp_path: Path, delivery: str
) -> None:
    """It reuses batch ids of the table for new rows."""
    options = {"url": f"sqlite:///{tmp_path}/shop.db", "table": "t", "delivery": delivery}
    checkpoint = tmp_path / "checkpoint"
    write(orders, tmp_path, "ottla-database", **options)
    shutil.copytree(checkpoint, tmp_path / "backup")
    for number in (FILES, FILES + 1):
        add_file(tmp_path, number)
    write(orders, tmp_path, "ottla-database", **options)
    checkpoint.rename(tmp_path / "newest")
    (tmp_path / "backup").rename(checkpoint)
    add_file(tmp_path, FILES + 2)
    with pytest.raises(PySparkException, match=r"(?s)checkpoint is older than the table: this is batch 3 .* newest"):
        write(orders, tmp_path, "ottla-database", **options)
    assert read(options["url"], "select count(*) from t") == [((FILES + 2) * ROWS,)]
    shutil.rmtree(checkpoint)
    (tmp_path / "newest").rename(checkpoint)
    write(orders, tmp_path, "ottla-database", **options)
    assert read(options["url"], "select count(*), count(distinct id) from t") == [((FILES + 3) * ROWS,) * 2]
    assert read(options["url"], "select count(*) from ottla_staging_t") == [(0,)]


def test_output_mode_complete_replaces_the_whole_table(orders: "DataFrame", tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    write(sums_of(orders), tmp_path, "ottla-database", "complete", url=url, table="replaced")
    assert read(url, "select parity, total from replaced order by parity") == EXPECTED_SUMS


def test_repeated_batches_inside_for_each_batch_are_recognised_by_their_ids(
    orders: "DataFrame", tmp_path: Path
) -> None:
    """foreachBatch supports output mode update, which Spark does not support for sinks written in Python."""
    url = f"sqlite:///{tmp_path}/shop.db"
    seen = []

    def upsert(frame: "DataFrame", batch_id: int) -> None:
        seen.append(batch_id)
        options = {"url": url, "table": "updated", "upsertKeys": "parity", "sinkId": "sums", "batchId": str(batch_id)}
        for _ in range(2):  # the second call repeats a batch that was written
            frame.write.format("ottla-database").mode("append").options(**options).save()

    writer = sums_of(orders).writeStream.foreachBatch(upsert).outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert read(url, "select parity, total from updated order by parity") == EXPECTED_SUMS
    assert read(url, "select batch_id, row_count from ottla_ledger") == [(seen[-1], 2)]


def sums_of(orders: "DataFrame") -> "DataFrame":
    return orders.groupBy((orders.id % 2).alias("parity")).sum("amount").withColumnRenamed("sum(amount)", "total")


def test_a_dataframe_is_written_atomically_and_overwrite_replaces_the_table(
    spark: "SparkSession", tmp_path: Path, url: str
) -> None:
    def save(start: int, mode: str, bad: bool = False) -> None:
        rows = spark.range(start, start + 1_000, numPartitions=3)
        frame = rows.selectExpr("id", f"if(id = {start + 999} and {bad}, raise_error('bad row'), 'x') as item")
        frame.write.format("ottla-database").mode(mode).options(url=url, table="whole").save()

    save(0, "append")
    save(1_000, "append")
    with pytest.raises(PySparkException, match="bad row"):
        save(2_000, "append", bad=True)
    assert read(url, "select count(*), min(id), max(id) from whole") == [(2_000, 0, 1_999)]
    save(5_000, "overwrite")
    assert read(url, "select count(*), min(id), max(id) from whole") == [(1_000, 5_000, 5_999)]


def test_a_mistake_reaches_the_user_with_a_hint(spark: "SparkSession", tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    numbers = spark.range(3).write.format("ottla-database").mode("append")
    with pytest.raises(PySparkException, match=r"(?s)has no option tabel.*Did you mean table\?"):
        numbers.options(url=url, tabel="t").save()
    spark.range(3).write.format("ottla-database").mode("append").options(url=url, table="t").save()
    letters = spark.sql("select 'x' as id").write.format("ottla-database").mode("append")
    with pytest.raises(PySparkException, match=r"(?si)column id is string .* integer in table t.*Cast it in the query"):
        letters.options(url=url, table="t").save()


def test_upsert_keys_without_a_unique_index_are_reported_before_the_pipeline_runs(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table t (id integer, item text)")
    file = tmp_path / "upserts.yaml"
    file.write_text(
        "source: {topic: orders, schema: 'id int, item string'}\n"
        "sql: select id, item from orders\n"
        f"sink: {{url: 'sqlite:///{tmp_path}/shop.db', table: t, upsert_keys: [ID]}}\n"
    )
    (problem,) = check(spark, load(file), None)
    assert (problem.key, problem.line) == ("sink", 3)
    assert problem.cause.startswith("upsertKeys is id, and table t has no primary key or unique index")
    assert 'create unique index "t_id_key" on "t" ("id")' in problem.hint
