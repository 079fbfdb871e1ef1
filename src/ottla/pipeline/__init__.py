"""Pipelines: read topics, transform them on Spark, write to topics or a database, with one guarantee, in one file.

>>> from ottla.pipeline import pipeline, topic
>>>
>>> @pipeline(source=topic("orders", schema="id bigint, item string"), sink=topic("items", key="item"))
... def items(orders):
...     return orders.select("id", "item")

`ottla pipeline run FILE` runs it. Nothing here imports Spark before it does.
"""

from ottla.pipeline.definition.python_file import database, pipeline, table, topic

__all__ = ["database", "pipeline", "table", "topic"]
