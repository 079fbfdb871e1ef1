"""Ottla on Spark, through PySpark and without a jar: `format("ottla")` reads and writes topics, exactly once.

>>> from ottla.spark import session
>>> spark = session("orders")
>>> orders = spark.readStream.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092")
...     .option("subscribe", "orders").load()

A session that you create yourself works too: Spark finds the format through the package `pyspark_ottla`, which is
installed with ottla.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.spark.spark_session import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    # Executors import this package too, and need no session.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ottla.spark import spark_session

    return getattr(spark_session, name)
