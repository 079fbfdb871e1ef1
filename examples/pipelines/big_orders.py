"""Writes big orders into an SQLite table, exactly once: rows and progress are one transaction.

ottla pipeline run examples/pipelines/big_orders.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ottla.pipeline import database, pipeline, table, topic


@pipeline(
    source=topic("orders", schema="id bigint, item string, quantity int, at timestamp", on_bad_record="skip"),
    tables={"prices": table("prices.csv", schema="item string, price decimal(10, 2)")},
    sink=database("sqlite:///big_orders.db", "big_orders", upsert_keys=["id"]),
    guarantee="exactly-once",
    checkpoint="checkpoints/big_orders",
)
def big_orders(orders: DataFrame, prices: DataFrame) -> DataFrame:
    priced = orders.join(prices, "item").withColumn("total", f.col("quantity") * f.col("price"))
    return priced.filter("total >= 5").select("id", "item", "quantity", "total", "at")
