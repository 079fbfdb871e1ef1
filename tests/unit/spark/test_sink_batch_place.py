"""The place of a write inside foreachBatch: from the local properties of its tasks, and from the options."""

import uuid

import pytest

from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.tasks import Place

pytest.importorskip("pyspark")

from ottla.spark.sink.batch_writer import batch_place
from ottla.spark.workers import BATCH_ID, QUERY_ID, RUN_ID

RUN = str(uuid.UUID(int=7))
PROPERTIES = {BATCH_ID: "5", QUERY_ID: "q", RUN_ID: RUN}


def place(properties: dict[str, str], **more: str) -> Place:
    written = {"kafka.bootstrap.servers": "a:1", "topic": "t", "sinkName": "s", "batchId": "5", **more}
    return batch_place(SinkOptions.parse(written, False), "call", 2, properties.get)


def test_query_and_run_are_taken_from_sparks_local_properties() -> None:
    assert place(PROPERTIES) == Place("s", "q", RUN, 5, 2, is_job=False, call="call")


def test_the_query_id_can_be_set_as_an_option() -> None:
    """Needed with Spark Connect, which calls the function outside the query's thread: each write is a separate run."""
    assert place({}, queryId="mine") == Place("s", "mine", "call", 5, 2, call="call")
    assert place({RUN_ID: RUN}, queryId="mine").run == "call", "this job group is not the run of a stream"
    assert place(PROPERTIES, queryId="mine") == Place("s", "mine", RUN, 5, 2, call="call")


def test_a_job_group_set_by_the_user_is_not_a_run() -> None:
    """It would be the same in every run, so no run would ever take over."""
    assert place({**PROPERTIES, RUN_ID: "nightly"}).run == "call"


def test_a_batch_id_other_than_the_querys_is_refused() -> None:
    with pytest.raises(SinkError, match=r"option batchId is 5, but this is batch 6 of the query\. Pass the batch id"):
        place({**PROPERTIES, BATCH_ID: "6"})


def test_a_write_of_an_unknown_query_is_refused() -> None:
    with pytest.raises(SinkError, match=r"belongs to is unknown\. Write inside foreachBatch, .* set queryId"):
        place({})
