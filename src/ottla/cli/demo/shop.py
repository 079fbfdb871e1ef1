"""The data of the demo: orders, prices, the pipeline file, and the expected result. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

PRICES = {
    "apple": 50,
    "banana": 35,
    "cherry": 410,
    "fig": 125,
    "lemon": 60,
    "melon": 290,
    "pear": 80,
    "plum": 20,
}
"""In cents."""
ITEMS = tuple(PRICES)
OPENS = datetime(2026, 1, 1, 8, tzinfo=UTC)
BETWEEN_ORDERS = timedelta(milliseconds=60)
WINDOW = timedelta(minutes=10)
LATE = timedelta(minutes=30)
"""The watermark delay. Partitions are read in parallel and never drift this far apart."""
ORDERS, ENRICHED, REVENUE, PLAIN = "orders", "orders.enriched", "revenue", "orders.at-least-once"

PIPELINE = """\
# The pipeline of `ottla demo`: one source, two exactly-once outputs, and one that is at-least-once for comparison.
name: demo
source:
  topic: {orders}
  schema: id bigint, item string, quantity int, at timestamp
  watermark: at {late} minutes
  options:
    maxOffsetsPerTrigger: {per_batch}
tables:
  prices:
    path: prices.csv
    schema: item string, price decimal(10, 2)
outputs:
  enriched:
    sql: |
      select orders.id, orders.item, quantity, price, quantity * price as total, at
      from orders join prices on orders.item = prices.item
    sink:
      topic: {enriched}
      key: item
  revenue:
    sql: |
      select window(at, '{window} minutes').start as opens, orders.item,
             count(*) as orders, sum(quantity * price) as revenue
      from orders join prices on orders.item = prices.item
      group by window(at, '{window} minutes'), orders.item
    sink:
      topic: {revenue}
      key: item
  at-least-once:
    guarantee: at-least-once
    sql: |
      select orders.id, orders.item, quantity, price, quantity * price as total, at
      from orders join prices on orders.item = prices.item
    sink:
      topic: {plain}
      key: item
guarantee: exactly-once
checkpoint: checkpoint
spark:
  spark.sql.shuffle.partitions: 2
  spark.sql.codegen.wholeStage: false
  spark.ui.enabled: false
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


@dataclass
class Expected:
    """The expected result."""

    orders: int
    cents: int = 0
    windows: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(orders, cents) by (window start, item)."""


def pipeline_text(per_batch: int) -> str:
    return PIPELINE.format(
        orders=ORDERS,
        enriched=ENRICHED,
        revenue=REVENUE,
        plain=PLAIN,
        per_batch=per_batch,
        late=int(LATE.total_seconds() // 60),
        window=int(WINDOW.total_seconds() // 60),
    )


def prices_text() -> str:
    return "item,price\n" + "".join(f"{item},{Decimal(cents) / 100:.2f}\n" for item, cents in PRICES.items())


def quantity_of(number: int) -> int:
    return number * 7919 % 9 + 1


def item_of(number: int) -> str:
    return ITEMS[number * 104_729 % 8_191 % len(ITEMS)]


def orders(count: int) -> Iterator[bytes]:
    """The orders as JSON."""
    at = OPENS
    for number in range(count):
        text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
        yield (f'{{"id":{number},"item":"{item_of(number)}","quantity":{quantity_of(number)},"at":"{text}"}}').encode()
        at += BETWEEN_ORDERS


def closing_order(count: int) -> bytes:
    """An order of an unknown item one day later: it advances the watermark, which closes the last windows."""
    at = OPENS + BETWEEN_ORDERS * count + timedelta(days=1)
    return f'{{"id":-1,"item":"closing time","quantity":0,"at":"{at.isoformat()}"}}'.encode()


def last_window_end(count: int) -> datetime:
    return OPENS + BETWEEN_ORDERS * count + WINDOW


def expected(count: int) -> Expected:
    found = Expected(count)
    for number in range(count):
        item = item_of(number)
        cents = quantity_of(number) * PRICES[item]
        found.cents += cents
        since = BETWEEN_ORDERS * number
        opens = (OPENS + since // WINDOW * WINDOW).strftime("%Y-%m-%dT%H:%M")
        orders_before, cents_before = found.windows.get((opens, item), (0, 0))
        found.windows[opens, item] = (orders_before + 1, cents_before + cents)
    return found
