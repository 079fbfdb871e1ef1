"""Where a write inside foreachBatch is: what Spark tells its tasks, and what the options say."""

import uuid

import pytest

from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.tasks import Place

pytest.importorskip("pyspark")

from ottla.spark.sink.batch_writer import batch_place
from ottla.spark.workers import BATCH_ID, QUERY_ID, RUN_ID

RUN = str(uuid.UUID(int=7))
TOLD = {BATCH_ID: "5", QUERY_ID: "q", RUN_ID: RUN}


def place(told: dict[str, str], **more: str) -> Place:
    written = {"kafka.bootstrap.servers": "a:1", "topic": "t", "sinkName": "s", "batchId": "5", **more}
    return batch_place(SinkOptions.parse(written, False), "call", 2, told.get)


def test_query_and_run_are_those_that_spark_tells() -> None:
    assert place(TOLD) == Place("s", "q", RUN, 5, 2, is_job=False, call="call")


def test_a_query_can_be_named() -> None:
    """As with Spark Connect, which calls the function in a place of its own: each write is a run by itself."""
    assert place({}, queryId="mine") == Place("s", "mine", "call", 5, 2, call="call")
    assert place({RUN_ID: RUN}, queryId="mine").run == "call", "whatever that group is, it is no run of a stream"
    assert place(TOLD, queryId="mine") == Place("s", "mine", RUN, 5, 2, call="call")


def test_a_group_that_the_user_gave_to_the_jobs_is_no_run() -> None:
    """It would be the same in every run, so that nobody ever took over."""
    assert place({**TOLD, RUN_ID: "nightly"}).run == "call"


def test_a_number_of_ones_own_is_refused() -> None:
    with pytest.raises(SinkError, match=r"option batchId is 5, but this is batch 6 of the query\. Pass the batch id"):
        place({**TOLD, BATCH_ID: "6"})


def test_a_write_of_an_unknown_query_is_refused() -> None:
    with pytest.raises(
        SinkError, match=r"Spark does not say of which query\. Write inside foreachBatch, .* set queryId"
    ):
        place({})
