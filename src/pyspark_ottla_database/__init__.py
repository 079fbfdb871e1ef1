"""Tells Spark about `format("ottla-database")`, as pyspark_ottla does about `format("ottla")`."""

from ottla.spark.database.sink import DatabaseDataSource as DefaultSource

__all__ = ["DefaultSource"]
