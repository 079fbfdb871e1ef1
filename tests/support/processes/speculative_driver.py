"""A Spark driver whose SparkConf, as spark-submit creates it, has spark.speculation=true.

`python -m tests.support.processes.speculative_driver DIRECTORY BOOTSTRAP TOPIC` writes a stream and a table to the
topic, and prints the error of each.
"""

import sys
from pathlib import Path
from typing import Any


def main(directory: Path, bootstrap: str, topic: str) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from ottla.spark import register
    from ottla.spark.spark_session import prepare_environment
    from tests.support.spark_queries import start_with_retries

    prepare_environment()
    conf = SparkConf().setMaster("local[1]").setAppName("speculative").set("spark.speculation", "true")
    conf.set("spark.ui.enabled", "false").set("spark.local.dir", str(directory / "local"))
    SparkContext(conf=conf).setLogLevel("ERROR")
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    (directory / "in").mkdir()
    (directory / "in" / "one.txt").write_text("one\n")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}

    def stream() -> None:
        rows = spark.readStream.text(str(directory / "in")).writeStream.format("ottla").options(**options)
        writer = rows.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        start_with_retries(writer.start).awaitTermination()

    def table() -> None:
        spark.read.text(str(directory / "in")).write.format("ottla").options(**options).mode("append").save()

    writes: dict[str, Any] = {"stream": stream, "table": table}
    for name, write in writes.items():
        try:
            write()
        except Exception as error:
            print(f"{name} failed: {' '.join(str(error).split())}", flush=True)
        else:
            print(f"{name} was written", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
