"""The data source `format("ottla")`: the methods that Spark calls. The work is done in source/ and sink/.

Spark pickles these objects between processes, so they hold options and no connections.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from ottla.spark.workers import QuickAck, freeze_loaded_objects

if TYPE_CHECKING:
    from ottla.spark.source.options import SourceOptions


class OttlaDataSource(QuickAck, DataSource):
    """Reads and writes the topics of Ottla or any other Kafka-compatible broker.

    >>> spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "a").load()
    """

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def _source_options(self) -> "SourceOptions":
        from ottla.spark.explaining import explained
        from ottla.spark.source.options import SourceOptions

        with explained():
            return SourceOptions.parse(self.options)

    def schema(self) -> StructType:
        from ottla.spark.source.source import spark_schema

        return spark_schema(self._source_options())

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.source.source import BatchReader

        return BatchReader(self._source_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ottla.spark.source.source import StreamReader

        return StreamReader(self._source_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ottla.spark.explaining import explained
        from ottla.spark.sink.batch_writer import BatchWriter
        from ottla.spark.sink.options import SinkOptions

        with explained():
            return BatchWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from ottla.spark.explaining import explained
        from ottla.spark.sink.options import SinkOptions
        from ottla.spark.sink.sink import StreamSink

        freeze_loaded_objects()
        with explained():
            return StreamSink(SinkOptions.parse(self.options, streaming=True), schema)
