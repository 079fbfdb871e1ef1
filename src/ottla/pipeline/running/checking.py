"""`validate`: finds mistakes in a pipeline without running it, on a Spark session that reads nothing."""

import re
from typing import TYPE_CHECKING, Any

from ottla.errors import AuthenticationError, KafkaError, OttlaError, did_you_mean, error_text_with_type
from ottla.pipeline.definition.model import Output, Pipeline
from ottla.pipeline.definition.problems import PipelineError, Problem
from ottla.pipeline.running.failures import explain
from ottla.pipeline.running.frames import Frames, check_sink, counted
from ottla.pipeline.running.lag import admin_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACE = re.compile(r"(?:; )?line (\d+),? pos (\d+)")


def check(spark: "SparkSession", made: Pipeline, bootstrap: str | None) -> list[Problem]:
    """The problems of schemas, SQL and sinks; with `bootstrap` also missing topics."""
    problems = check_topics(made, bootstrap) if bootstrap is not None else []
    frames = Frames(spark, made, bootstrap or "127.0.0.1:9092", stand_in=True)
    for output in made.outputs.values():
        problems += _check_output(frames, output)
    for source in made.dead_letter_sources:
        problems += _attempt(made, ("sources", source.name), lambda s=source: frames.bad_records(s))
    return list(dict.fromkeys(problems))


def _check_output(frames: Frames, output: Output) -> list[Problem]:
    made = frames.pipeline
    base = ("outputs", output.name) if ("outputs",) in made.lines else ()
    frame: Any = None

    def build() -> None:
        nonlocal frame
        frame = frames.output(output)

    path = (*base, "sql") if output.sql is not None else base
    problems = _attempt(made, path, build)
    if problems:
        return problems
    problems = _attempt(made, path, lambda: check_streaming(frames.spark, frames, output, frame))
    return problems + _attempt(made, (*base, "sink"), lambda: check_sink(frames, output, frame))


def check_streaming(spark: "SparkSession", frames: Frames, output: Output, frame: Any) -> None:
    """Spark's check at the start of a query: whether it can run as a stream in this output mode."""
    if not frame.isStreaming:
        raise OttlaError("the result does not use any source", "Select from one of the sources.")
    rows = counted(frames.for_sink(output, frame))
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "complete": modes.Complete, "update": modes.Update}[output.output_mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)  # noqa: SLF001 - PySpark has no public way


def _attempt(made: Pipeline, path: tuple[str, ...], attempt: Any) -> list[Problem]:
    from pyspark.errors import PySparkException

    try:
        attempt()
    except PipelineError as error:
        return error.problems
    except OttlaError as error:
        return [Problem(made.file, made.line_of(*path), ".".join(path), error.message, error.hint)]
    except PySparkException as error:
        return [_of_spark(made, path, error)]
    except Exception as error:  # a user's function may raise anything
        cause = error_text_with_type(error)
        return [Problem(made.file, made.line_of(*path), ".".join(path), cause, "Fix the function.")]
    return []


def _of_spark(made: Pipeline, path: tuple[str, ...], error: Exception) -> Problem:
    text = str(error)
    place = PLACE.search(text)
    line = made.line_of(*path)
    begins = made.lines.get((*path, ""))
    if place is not None and begins is not None:
        line = begins + int(place.group(1)) - 1
    cause = explain(text).cause if "[" in text else " ".join(text.split("\n")[0].split())
    cause = PLACE.sub("", cause).rstrip(" ;.,")
    return Problem(made.file, line, ".".join(path), cause, "")


def check_topics(made: Pipeline, bootstrap: str) -> list[Problem]:
    """The topics of the pipeline that do not exist."""

    from ottla.client.blocking import Admin

    settings = {**admin_settings(bootstrap, made.kafka), "default.api.timeout.ms": "10000"}
    try:
        with Admin(settings) as admin:
            there = [topic.name for topic in admin.list_topics(include_internal=True)]
    except AuthenticationError as error:
        return [Problem(made.file, made.line_of("kafka"), "kafka", error.detail, error.hint)]
    except KafkaError as error:
        cause = f"the brokers at {bootstrap} do not answer: {error.detail or error}"
        return [Problem(made.file, made.line_of("bootstrap"), "bootstrap", cause, "Are they running?")]
    problems = []
    places = {topic: _place_of_source(made, topic) for topic in made.topics_in}
    places |= dict.fromkeys(made.topics_out, ("sink",) if ("sink",) in made.lines else ("outputs",))
    for topic, path in places.items():
        if topic not in there:
            hint = did_you_mean(topic, there, f"Create it: ottla topic create {topic}.")
            cause = f"there is no topic {topic} at {bootstrap}"
            problems.append(Problem(made.file, made.line_of(*path), ".".join(path), cause, hint))
    return problems


def _place_of_source(made: Pipeline, topic: str) -> tuple[str, ...]:
    for source in made.sources.values():
        if topic in source.topics:
            return ("source", "topic") if ("source",) in made.lines else ("sources", source.name)
    return ()
