"""The commands against a running broker: what they do, print and reject."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Ran, Run
from tests.support.waiting import PATIENCE_S

UNREACHABLE = "127.0.0.1:1"


def shell(broker: Any, *words: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the tool as a process of its own, with real pipes."""
    return subprocess.run(
        [sys.executable, "-m", "ottla", *words],
        input=stdin,
        capture_output=True,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap} | environment,
        timeout=PATIENCE_S,
    )


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "input.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


# Topics


def test_a_topic_is_created_described_altered_and_deleted(run: Run, topic: str) -> None:
    assert run("topic", "create", topic, "--partitions", "3", "-c", "retention.ms=60000").out == (
        f"created topic {topic}: 3 partitions, replication 1\n"
    )
    row = next(line.split() for line in run("topic", "list").lines if line.startswith(f"{topic} "))
    assert row == [topic, "3", "1", "0", "0", "B"]
    described = run("topic", "describe", topic)
    assert "retention.ms=60000" in described.out
    assert run("topic", "alter", topic, "-p", "4", "--reset", "retention.ms").out == (
        f"changed topic {topic}: 3 -> 4 partitions, retention.ms reset\n"
    )
    (document,) = run("topic", "describe", topic, "--json").json
    assert len(document["partitions"]) == 4
    assert document["configs"] == {}
    assert run("topic", "delete", topic).out == f"deleted {topic}\n"
    assert run("topic", "describe", topic).status == 1


def test_table_columns_are_aligned_in_a_pipe(run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "2")
    lines = run("topic", "describe", topic).lines
    header = next(line for line in lines if line.startswith("PARTITION"))
    rows = lines[lines.index(header) + 1 :]
    assert len(rows) == 2
    end = header.index("END OFFSET") + len("END OFFSET")
    assert {row[end - 1] for row in rows} == {"0"}
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in "".join(lines)


def test_creating_an_existing_topic_fails_without_if_not_exists(run: Run, topic: str) -> None:
    assert run("topic", "create", topic, "--json").json["created"] is True
    again = run("topic", "create", topic)
    assert again.status == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert run("topic", "create", topic, "--if-not-exists").status == 0
    assert run("topic", "create", topic, "--if-not-exists", "--json").json == {"topic": topic, "created": False}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("create", "bad name"),
            "ottla: topic name is invalid: 'bad name' has characters other than ASCII letters, digits, '.', '_' "
            "and '-' (choose another name)",
        ),
        (("create", ".."), "ottla: topic name is invalid: '..' is not allowed (choose another name)"),
        (("create", "x" * 250), "ottla: topic name is invalid: its length 250 is more than 249 (choose another name)"),
        (("create", "x", "-c", "retention"), "ottla: --config retention has no '=' (write --config NAME=VALUE)"),
        (("alter", "x"), "ottla: nothing to change (pass --partitions, --config or --reset)"),
        (("alter", "x", "-c", "a=1", "--reset", "a"), "ottla: a is in both --config and --reset (choose one)"),
    ],
)
def test_invalid_topic_options_are_rejected_with_one_line(run: Run, words: tuple[str, ...], message: str) -> None:
    ran = run("topic", *words)
    assert (ran.status, ran.err.strip(), ran.out) == (2, message, "")


def test_the_broker_rejects_an_unknown_topic_setting(run: Run, topic: str) -> None:
    ran = run("topic", "create", topic, "-c", "no.such.setting=1")
    assert ran.status == 1
    assert ran.err.startswith("ottla: ")
    assert "no.such.setting" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_number_of_partitions_cannot_decrease(run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "3")
    ran = run("topic", "alter", topic, "-p", "2")
    assert (ran.status, ran.err.strip()) == (
        2,
        f"ottla: topic {topic} already has 3 partitions (the number of partitions can only increase)",
    )


def test_a_missing_topic_is_reported_with_a_similar_name(run: Run, topic: str) -> None:
    run("topic", "create", f"{topic}-orders")
    assert run("topic", "describe", f"{topic}-ordres").err.strip() == (
        f"ottla: topic {topic}-ordres does not exist (Did you mean {topic}-orders?)"
    )
    assert run("consume", "zzz").err.strip() == (
        "ottla: topic zzz does not exist (create it with: ottla topic create zzz)"
    )
    assert run("topic", "delete", "zzz").err.strip() == (
        "ottla: topic zzz does not exist (list the topics with: ottla topic list)"
    )


# Produce and consume


def test_produced_lines_are_consumed(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    sent = run("produce", topic, "--file", file("one\ntwo\r\n\nlast without newline"))
    assert sent.status == 0
    assert sent.out == ""
    assert sent.err.startswith(f"wrote 4 records to {topic}, ")
    assert run("consume", topic, "--exit-at-end").lines == ["one", "two", "", "last without newline"]
    assert run("consume", topic, "--max", "2").lines == ["one", "two"]
    summary = run("produce", topic, "--file", file("x\n"), "--json").json
    assert (summary["records"], summary["failed"], summary["bytes"]) == (1, 0, 1)
    assert run("produce", topic, "--file", file("x\n"), "--quiet") == Ran(0, "", "")


def test_keys_headers_nulls_and_partitions(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "3")
    lines = file("ann\t1\nbob\tNULL\n\tempty key\n")
    words = ("--key-separator", "\\t", "--null", "NULL", "-H", "source=web", "-H", "empty=", "-p", "2")
    assert run("produce", topic, "-f", lines, *words).status == 0
    records = run("consume", topic, "-e", "--json").json_lines
    assert [(r["partition"], r["key"], r["value"]) for r in records] == [
        (2, "ann", "1"),
        (2, "bob", None),
        (2, "", "empty key"),
    ]
    assert records[0]["headers"] == [["source", "web"], ["empty", ""]]
    assert run("consume", topic, "-e", "--format", "key-value").lines == ["ann\t1", "bob\tnull", "\tempty key"]
    full = run("consume", topic, "-e", "--format", "full").lines[0]
    assert full.startswith(f"{topic}-2 0 2")
    assert full.endswith("ann 1 [source=web, empty=]")
    template = run("consume", topic, "-e", "--format", "{partition}/{offset}={key}\\t{value}").lines
    assert template == ["2/0=ann\t1", "2/1=bob\tnull", "2/2=\tempty key"]


def test_a_line_without_key_separator_stops_produce_and_is_named(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    ran = run("produce", topic, "-f", file("a:1\nb\nc:3\n"), "-k", ":")
    assert (ran.status, ran.err.strip()) == (
        2,
        "ottla: line 2 has no key separator ':' (the lines before it were written)",
    )
    assert run("consume", topic, "-e").lines == ["1"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_works_with_every_acks(run: Run, topic: str, file: Any, codec: str) -> None:
    run("topic", "create", topic, "-p", "1")
    for acks in ("all", "1", "0"):
        assert run("produce", topic, "-f", file(f"{acks}\n" * 50), "-z", codec, "--acks", acks).status == 0
    assert run("consume", topic, "--max", "150").lines == ["all"] * 50 + ["1"] * 50 + ["0"] * 50


def test_unicode_is_shown_as_text_and_other_bytes_are_escaped(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("žluťoučký 日本 🎉\n".encode() + b"\xff\x00ab\\\n"))
    assert run("consume", topic, "-e").lines == ["žluťoučký 日本 🎉", "\\xff\\x00ab\\x5c"]
    values = [record["value"] for record in run("consume", topic, "-e", "--json").json_lines]
    assert values == ["žluťoučký 日本 🎉", {"base64": "/wBhYlw="}]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("beginning", ["0", "1", "2", "3", "4"]),
        ("end", []),
        ("3", ["3", "4"]),
        ("-2", ["3", "4"]),
        ("-99", ["0", "1", "2", "3", "4"]),
        ("@0", ["0", "1", "2", "3", "4"]),
        ("2001-09-09T01:46:40+00:00", ["0", "1", "2", "3", "4"]),
        ("2999-01-01", []),
    ],
)
def test_consume_starts_at_the_requested_position(
    run: Run, topic: str, file: Any, start: str, expected: list[str]
) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("0\n1\n2\n3\n4\n"))
    assert run("consume", topic, "-e", "--from", start).lines == expected


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("consume", "{t}", "--from", "soon"), 2, "ottla: --from soon is not a valid start position"),
        (("consume", "{t}", "--from", "77"), 1, "ottla: offset 77 is out of range for {t}-0 (valid: 0 to 0)"),
        (("consume", "{t}", "-p", "5"), 2, "ottla: topic {t} has no partition 5 (it has only partition 0)"),
        (("consume", "{t}", "-o", "xml"), 2, "ottla: unknown format xml"),
        (("consume", "{t}", "-o", "{{size}}"), 2, "ottla: unknown field {{size}} in the template"),
        (("consume", "{t}", "-o", "{{value"), 2, "ottla: invalid template '{{value'"),
        (("consume", "{t}", "--isolation", "none"), 2, "ottla: Invalid value none for configuration isolation.level"),
        (("consume", "{t}", "--set", "fetch.min.byte=1"), 2, "ottla: Unknown setting fetch.min.byte (Did you mean"),
        (("produce", "{t}", "-f", "/no/such/file"), 2, "ottla: /no/such/file: no such file or directory"),
        (("produce", "{t}", "-f", "{f}", "-H", "x"), 2, "ottla: --header 'x' is not NAME=VALUE"),
        (("produce", "{t}", "-f", "{f}", "-H", "=x"), 2, "ottla: --header '=x' is not NAME=VALUE"),
        (("produce", "{t}", "-f", "{f}", "-k", ""), 2, "ottla: --key-separator is empty"),
        (("produce", "{t}", "-f", "{f}", "-p", "5"), 2, "ottla: topic {t} has no partition 5"),
        (("produce", "{t}", "-f", "{f}", "-z", "rar"), 2, "ottla: Invalid value rar for configuration"),
        (("produce", "{t}", "-f", "{f}", "--acks", "2"), 2, "ottla: Invalid value 2 for configuration acks"),
        (("produce", "{t}", "-f", "{f}", "--set", "acks=1"), 2, "ottla: acks is set by an option and by --set"),
        (("produce", "{t}", "-f", "{f}", "--set", "lingerms=1"), 2, "ottla: Unknown setting lingerms (Did you mean"),
        (
            ("produce", "{t}", "-f", "{f}", "--set", "retries=0", "--set", "enable.idempotence=true"),
            2,
            "ottla: Must set retries to non-zero when using the idempotent producer. (",
        ),
    ],
)
def test_invalid_produce_and_consume_options_are_rejected_with_one_line(
    run: Run, topic: str, file: Any, words: tuple[str, ...], status: int, message: str
) -> None:
    run("topic", "create", topic, "-p", "1")
    names = {"t": topic, "f": file("x\n")}
    ran = run(*(word.format(**names) for word in words))
    assert ran.status == status
    assert ran.out == ""
    assert ran.err.startswith(message.format(**names))
    assert len(ran.err.splitlines()) == 1


def test_a_record_rejected_by_the_broker_is_counted_and_fails_the_command(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1", "-c", "cleanup.policy=compact")
    ran = run("produce", topic, "-f", file("keyless\n"))
    assert ran.status == 1
    assert ran.err.splitlines()[-1].startswith("ottla: 1 record could not be written: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_in_one_line(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic)
    run("produce", topic, "-f", file("a\n"))
    for words in (("consume", topic, "-e"), ("topic", "list", "--json")):
        command = [sys.executable, "-m", "ottla", *words, "--bootstrap-server", broker.bootstrap]
        with open("/dev/full", "wb") as full:
            ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S)
        assert ran.stderr == b"ottla: cannot write the output: no space left on device\n"
        assert ran.returncode == 1


def test_produce_reads_standard_input_and_consume_writes_to_a_pipe(broker: Any, run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "1")
    lines = b"".join(b"%d\n" % i for i in range(30_000))
    sent = shell(broker, "produce", topic, stdin=lines)
    assert sent.returncode == 0
    assert sent.stderr.startswith(b"wrote 30,000 records to ")
    read = shell(broker, "consume", topic, "--exit-at-end")
    assert (read.returncode, read.stdout) == (0, lines)


def test_a_closed_pipe_is_not_an_error(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file(("x" * 100 + "\n") * 20_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"x" * 100 + b"\n"
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_consume_follows_new_records_and_ends_quietly_on_ctrl_c(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("before\n"))
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"before\n"
    run("produce", topic, "-f", file("after\n"))
    assert process.stdout.readline() == b"after\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == b""
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


def test_characters_missing_in_the_terminal_encoding_are_escaped(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("žluť\n"))
    read = shell(broker, "consume", topic, "-e", PYTHONIOENCODING="ascii")
    assert (read.returncode, read.stdout) == (0, b"\\u017elu\\u0165\n")


# The cluster and its settings


def test_the_cluster_is_shown_as_text_and_as_json(run: Run, broker: Any) -> None:
    shown = run("cluster")
    assert broker.bootstrap in shown.out
    assert "controller" in shown.out.lower()
    document = run("cluster", "--json").json
    assert [f"{b['host']}:{b['port']}" for b in document["brokers"]] == [broker.bootstrap]
    assert document["brokers"][0]["controller"] is True
    apis = {api["api"]: api for api in run("cluster", "--apis", "--json").json}
    assert apis["Fetch"]["max"] >= 12
    assert run("cluster", "--apis").lines[0].split() == ["KEY", "API", "FROM", "TO"]


def test_settings_are_shown_changed_and_reset(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    assert run("config", "alter", "topic", topic, "--set", "retention.ms=5000").out == (
        f"changed topic {topic}: retention.ms=5000\n"
    )
    shown = {entry["name"]: entry for entry in run("config", "describe", "topic", topic, "--json").json}
    assert (shown["retention.ms"]["value"], shown["retention.ms"]["source"]) == ("5000", "topic")
    run("config", "alter", "topic", topic, "--reset", "retention.ms")
    assert "retention.ms" not in run("config", "describe", "topic", topic).out
    assert "retention.ms" in run("config", "describe", "topic", topic, "--all").out
    assert run("config", "describe", "broker", "0", "--all", "--doc", "--json").json[0]["documentation"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("describe", "broker", "99"), 2, "ottla: broker 99 does not exist"),
        (("describe", "broker", "first"), 2, "ottla: 'first' is not a broker id"),
        (("describe", "broker", "²"), 2, "ottla: '²' is not a broker id"),
        (("describe", "table", "x"), 2, "ottla: invalid value for 'KIND'"),
        (("alter", "broker", "0"), 2, "ottla: nothing to change (pass --set NAME=VALUE or --reset NAME)"),
        (("alter", "broker", "0", "--set", "x"), 2, "ottla: --set x has no '='"),
    ],
)
def test_invalid_settings_are_rejected(run: Run, words: tuple[str, ...], status: int, message: str) -> None:
    ran = run("config", *words)
    assert ran.status == status
    assert ran.err.startswith(message)


# Other errors


@pytest.mark.parametrize(
    "words",
    [("topic", "list"), ("cluster",), ("produce", "t"), ("consume", "t"), ("config", "describe", "topic", "t")],
)
def test_an_unreachable_broker_is_reported_with_its_address_and_a_hint(
    run: Run, words: tuple[str, ...], tmp_path: Path
) -> None:
    extra = ["--file", os.devnull] if words[0] == "produce" else []
    ran = run(*words, *extra, "--bootstrap", UNREACHABLE)
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.strip() == (
        f"ottla: cannot connect to {UNREACHABLE}: connection refused "
        "(start a broker with: ottla serve, or pass the address of a running one with --bootstrap HOST:PORT)"
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "ottla: Invalid url in bootstrap.servers: nowhere (Write host:port, as in 127.0.0.1:9092.)"),
        ("", "ottla: --bootstrap is empty (write HOST:PORT, as in 127.0.0.1:9092)"),
    ],
)
def test_an_invalid_address_is_rejected(run: Run, address: str, message: str) -> None:
    ran = run("cluster", "--bootstrap", address)
    assert (ran.status, ran.err.strip()) == (2, message)


def test_one_reachable_address_of_several_is_enough(run: Run, broker: Any) -> None:
    assert run("cluster", "--bootstrap", f"{UNREACHABLE},{broker.bootstrap}").status == 0


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("frobnicate",), "ottla: no such command 'frobnicate' (see: ottla --help)"),
        (("topic", "create"), "ottla: missing argument"),
        (("produce", "t", "--nope"), "ottla: no such option: --nope (see: ottla produce --help)"),
        (("topic", "create", "t", "-p", "many"), "ottla: invalid value for '--partitions' / '-p'"),
        (("topic", "create", "t", "-p", "0"), "ottla: invalid value for '--partitions' / '-p'"),
        (("config", "describe", "topics", "t"), "ottla: invalid value for 'KIND': 'topics' is not one of"),
    ],
)
def test_an_invalid_command_line_is_rejected_with_one_line(run: Run, words: tuple[str, ...], start: str) -> None:
    ran = run(*words)
    assert ran.status == 2
    assert ran.err.startswith(start)
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("topic",),
        ("topic", "create"),
        ("topic", "list"),
        ("topic", "describe"),
        ("topic", "alter"),
        ("topic", "delete"),
        ("produce",),
        ("consume",),
        ("cluster",),
        ("cluster", "watch"),
        ("cluster", "elect-leaders"),
        ("cluster", "reassign"),
        ("cluster", "drain"),
        ("cluster", "wait-in-sync"),
        ("cluster", "migrate-metadata"),
        ("acl", "add"),
        ("acl", "check"),
        ("quota", "set"),
        ("user", "add"),
        ("copy",),
        ("verify",),
        ("config", "describe"),
        ("config", "alter"),
        ("log", "dump"),
        ("demo",),
        ("pipeline", "run"),
        ("pipeline", "validate"),
        ("pipeline", "status"),
    ],
)
def test_help_fits_80_columns_and_shows_examples(
    run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*words, "--help")
    assert ran.status == 0
    assert "Usage: ottla" in ran.out
    assert not re.search(r"<(list|bool|str|int|path)|\[\[", ran.out, re.IGNORECASE), "a Python type or double brackets"
    is_group = words in ((), ("topic",))
    assert is_group or "Examples:" in ran.out
    examples = [line for line in ran.out.partition("Examples:")[2].partition("╭")[0].splitlines() if line.strip()]
    assert all(line.startswith("   ") for line in examples), "an example is wrapped at 80 columns"


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    ran = run()
    assert ran.status == 2
    assert "Usage: ottla" in ran.out + ran.err
    assert "consume" in ran.out + ran.err


def test_version_prints_the_version(run: Run) -> None:
    import ottla

    assert run("--version").out == f"ottla {ottla.__version__}\n"


def test_the_broker_demo_verifies_every_record(run: Run, broker: Any) -> None:
    ran = run("demo", "--broker", "--records", "2000", "--bootstrap", broker.bootstrap, "--json")
    assert ran.status == 0
    assert (ran.json["records"], ran.json["duplicates"], ran.json["missing"]) == (2000, 0, 0)
    assert "ottla-demo" not in run("topic", "list").out


# A group


def test_consume_as_a_member_of_a_group_continues_where_it_stopped(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--file", file("1\n2\n3\n4\n5\n"))
    first = run("consume", topic, "--group", topic, "--max", "2")
    assert first.lines == ["1", "2"]
    assert f"group {topic}: assigned {topic}-0" in first.err
    (shown,) = run("group", "describe", topic, "--json").json["partitions"]
    assert (shown["committed_offset"], shown["lag"]) == (2, 3), "exactly the printed records are committed"
    second = run("consume", topic, "-g", topic, "--exit-at-end")
    assert second.lines == ["3", "4", "5"]
    assert run("consume", topic, "-g", topic, "-e").lines == []
    assert run("consume", topic, "-g", f"{topic}-new", "-e", "--from", "end").lines == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "0"), "ottla: --partition cannot be combined with --group (the group assigns the partitions)"),
        (("--from", "5"), "ottla: --from 5 cannot be combined with --group: a group starts at its committed offsets"),
    ],
)
def test_options_that_a_group_decides_cannot_be_chosen(run: Run, topic: str, words: tuple[str, ...], said: str) -> None:
    run("topic", "create", topic)
    ran = run("consume", topic, "--group", "g", *words)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
