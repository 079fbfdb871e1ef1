"""The blocking API is generated from the async one: same methods, arguments, types and documentation."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncDeserializingConsumer,
    AsyncProducer,
    Consumer,
    DeserializingConsumer,
    Producer,
)

ROOT = Path(__file__).parents[4]
spec = importlib.util.spec_from_file_location("make_blocking", ROOT / "tools" / "make_blocking.py")
assert spec is not None
assert spec.loader is not None
make_blocking = importlib.util.module_from_spec(spec)
sys.modules["make_blocking"] = make_blocking  # dataclasses look their module up there
spec.loader.exec_module(make_blocking)

PAIRS = [
    (AsyncAdmin, Admin),
    (AsyncProducer, Producer),
    (AsyncConsumer, Consumer),
    (AsyncDeserializingConsumer, DeserializingConsumer),
]
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def methods(client: type) -> dict[str, Any]:
    found = {}
    for name, member in inspect.getmembers(client, inspect.isroutine):
        if not name.startswith("_") or name in SPECIAL or name in SPECIAL.values():
            found[SPECIAL.get(name, name)] = member
    return found


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_apis_have_the_same_methods(asynchronous: type, blocking: type) -> None:
    assert methods(asynchronous).keys() == methods(blocking).keys()


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_apis_take_the_same_arguments(asynchronous: type, blocking: type) -> None:
    ours, theirs = methods(asynchronous), methods(blocking)
    for name in ours.keys() - SPECIAL.values():
        parameters = [
            [(p.name, p.kind, p.default) for p in inspect.signature(api[name]).parameters.values()]
            for api in (ours, theirs)
        ]
        assert parameters[0] == parameters[1], name


@pytest.mark.parametrize("client", [client for pair in PAIRS for client in pair])
def test_every_client_has_an_example(client: type) -> None:
    assert ">>>" in (client.__doc__ or "")


@pytest.mark.parametrize("name", [name for name in ottla.__all__ if isinstance(getattr(ottla, name), type)])
def test_every_method_of_every_public_class_is_documented(name: str) -> None:
    def is_undocumented(member: Any) -> bool:
        return (inspect.isroutine(member) or isinstance(member, property)) and not inspect.getdoc(member)

    public = getattr(ottla, name)
    members = {each: inspect.getattr_static(public, each) for each in dir(public) if not each.startswith("_")}
    assert public.__doc__
    assert [each for each, member in members.items() if is_undocumented(getattr(member, "__func__", member))] == []


def test_docstrings_of_the_blocking_api_do_not_say_await() -> None:
    assert Consumer.assign.__doc__ is not None and AsyncConsumer.assign.__doc__ is not None
    assert ">>> await consumer.assign(" in AsyncConsumer.assign.__doc__
    assert ">>> consumer.assign(" in Consumer.assign.__doc__
    for _, blocking in PAIRS:
        assert all("await " not in (method.__doc__ or "") for method in methods(blocking).values())


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    files: dict[Path, str] = make_blocking.generate()
    return files


@pytest.mark.parametrize("name", make_blocking.FILES)
def test_generated_files_are_current(name: str, generated: dict[Path, str]) -> None:
    path = make_blocking.BLOCKING / name
    assert path.read_text() == generated[path], f"stale; run: {make_blocking.COMMAND}"


def test_every_hand_written_function_is_called_by_a_generated_method(generated: dict[Path, str]) -> None:
    text = "".join(generated.values())
    assert [name for name in make_blocking.hand_written() if f"by_hand.{name}(" not in text] == []


PAGE = """
from ottla import Admin, Consumer, DeserializingConsumer, Producer

admin = Admin(bootstrap_servers="127.0.0.1:9092")
reveal_type(admin.create_topic("orders", partitions=3))
reveal_type(admin.describe_groups)
with Producer() as producer:
    reveal_type(producer)
    reveal_type(producer.send("orders", b"42 apples"))
    reveal_type(producer.send_and_wait)
    with producer.transaction() as nothing:
        reveal_type(nothing)
with Consumer() as consumer:
    reveal_type(consumer.poll(1000))
    reveal_type(consumer.committed([("orders", 0)]))
    for record in consumer:
        reveal_type(record)
reader = DeserializingConsumer(value_deserializer=int)
reveal_type(reader.poll())
admin.create_topic("orders", partitions="3")
"""
REVEALED = [
    "ottla.client.core.model.CreatedTopic",
    "def (group_ids: Sequence[str]) -> list[ottla.client.admin.group_model.GroupDescription]",
    "ottla.client.blocking.producer.Producer",
    "ottla.client.producer.hot_path.Delivery",
    "-> tuple[str, int, int, int, fallback=ottla.client.core.model.RecordMetadata]",
    "None",
    "ottla.client.core.model.Records",
    "dict[tuple[str, int, fallback=ottla.types.TopicPartition], ottla.client.core.model.CommittedOffset | None]",
    "ottla.client.core.model.ConsumerRecord",
    "list[tuple[str, int, int, int, bytes | None, int | None,",
]


def test_editors_and_type_checkers_see_the_types(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(PAGE)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, "--disable-error-code=import-untyped", f"--cache-dir={tmp_path / 'cache'}", str(page)],
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    notes = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    plain = [note.replace("builtins.", "").replace("typing.", "").replace("collections.abc.", "") for note in notes]
    assert len(plain) == len(REVEALED), done.stdout
    for note, expected in zip(plain, REVEALED, strict=True):
        assert expected in note, done.stdout
    (error,) = [line for line in done.stdout.splitlines() if " error: " in line]
    assert 'Argument "partitions" to "create_topic" of "Admin" has incompatible type "str"' in error
