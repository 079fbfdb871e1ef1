"""Tells Spark about `format("ottla")`: it looks for `DefaultSource` in every top-level package named pyspark_*."""

from ottla.spark.datasource import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
