"""Sums what each customer ordered, with Arrow columns: thousands of records at a time, without an object per record.

Records of the first topic have the customer as key and an amount in cents as text. For every batch that is read, the
second topic gets the sum of each customer. Offsets are committed after the sums are stored (at least once).

python examples/arrow.py 127.0.0.1:9092 orders sums accounting       (needs: pip install 'ottla[arrow]')
"""

import sys

import pyarrow as pa

from ottla import Consumer, Producer


def sums_of(batch: pa.RecordBatch) -> pa.Table:
    """Each customer's sum as a record: key and value."""
    orders = pa.table(
        {
            "customer": batch.column("key"),
            "cents": batch.column("value").cast(pa.string()).cast(pa.int64()),
        }
    )
    sums = orders.group_by("customer").aggregate([("cents", "sum")])
    return pa.table({"key": sums["customer"], "value": sums["cents_sum"].cast(pa.string())})


def run(bootstrap: str, source: str, target: str, group: str, *, until_end: bool = False) -> int:
    """Runs endlessly, or with `until_end` to the end of the topic. Returns the number of records read."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    read = 0
    with (
        Consumer(settings, bootstrap_servers=bootstrap, group_id=group) as consumer,
        Producer(bootstrap_servers=bootstrap) as producer,
    ):
        consumer.subscribe([source])
        while not (until_end and consumer.is_at_end()):
            batch = consumer.poll_arrow(1_000)
            if batch.num_rows:
                producer.send_arrow(sums_of(batch), target).result()
                consumer.commit()
                read += batch.num_rows
    return read


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    run(*sys.argv[1:5])
