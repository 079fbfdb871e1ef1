"""${env:NAME} and ${file:/path} in pipeline files: resolved for clients only, and checked early."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.definition.options import sink_options, source_options
from ottla.pipeline.definition.problems import PipelineError
from ottla.pipeline.definition.secrets import MissingSecret, resolve
from ottla.pipeline.running.lag import admin_settings

SECRET = "s3cr3t-of-alice"
FILE = """
name: revenue
source: {topic: orders, schema: id bigint}
sql: SELECT id FROM orders
sink: {topic: revenue}
bootstrap: broker:9093
kafka:
  security.protocol: SASL_SSL
  sasl.mechanisms: SCRAM-SHA-512
  sasl.username: alice
  sasl.password: ${env:ALICE_PASSWORD}
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pipeline]:
    monkeypatch.setenv("ALICE_PASSWORD", SECRET)

    def load_text(text: str = FILE, **changes: str) -> Pipeline:
        (tmp_path / "revenue.yaml").write_text(text)
        return load(tmp_path / "revenue.yaml", changes)

    return load_text


def test_clients_get_the_value_and_everything_else_the_reference(made: Callable[..., Pipeline]) -> None:
    pipeline = made()
    (source,), (output,) = pipeline.sources.values(), pipeline.outputs.values()
    for options in (source_options(pipeline, source, "b:1"), sink_options(pipeline, output, "b:1")):
        assert options["kafka.sasl.password"] == SECRET
        assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert admin_settings("b:1", pipeline.kafka)["sasl.password"] == SECRET
    assert pipeline.kafka["sasl.password"] == "${env:ALICE_PASSWORD}"
    assert SECRET not in repr(pipeline)


def test_a_missing_variable_is_reported_with_its_key_and_line(
    made: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALICE_PASSWORD")
    with pytest.raises(PipelineError) as raised:
        made()
    (problem,) = raised.value.problems
    assert (problem.key, problem.line) == ("kafka.sasl.password", 11)
    assert problem.cause == "environment variable ALICE_PASSWORD is not set"
    assert "export ALICE_PASSWORD=" in problem.hint


def test_a_file_and_a_line_of_a_properties_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "client.properties").write_text(f"sasl.password={SECRET}\n")
    for reference in (f"${{file:{tmp_path}/password}}", f"${{file:{tmp_path}/client.properties:sasl.password}}"):
        assert resolve({"a": f"<{reference}>"}) == {"a": f"<{SECRET}>"}
    for wrong, said in (
        ("${file:/no/such/file}", "cannot read /no/such/file"),
        (f"${{file:{tmp_path}/client.properties:nothing}}", "has no nothing"),
    ):
        with pytest.raises(MissingSecret, match=said):
            resolve({"a": wrong})


def test_text_that_is_no_reference_stays(made: Callable[..., Pipeline]) -> None:
    assert resolve({"a": "$x ${other} ${env}"}) == {"a": "$x ${other} ${env}"}


def test_a_database_url_may_have_a_reference(made: Callable[..., Pipeline]) -> None:
    text = FILE.replace(
        "sink: {topic: revenue}", "sink: {url: 'postgresql://alice:${env:ALICE_PASSWORD}@db/shop', table: revenue}"
    )
    pipeline = made(text)
    (output,) = pipeline.outputs.values()
    assert sink_options(pipeline, output, "b:1")["url"] == f"postgresql://alice:{SECRET}@db/shop"
    assert SECRET not in repr(pipeline) + output.sink.shown


def test_secrets_given_with_set_are_references_too(made: Callable[..., Pipeline]) -> None:
    changes = {"kafka.sasl.password": "${env:ALICE_PASSWORD}", "kafka.sasl.username": "bob"}
    pipeline = made(FILE, **changes)
    assert pipeline.kafka["sasl.username"] == "bob"
    assert SECRET not in json.dumps(dict(pipeline.kafka))
