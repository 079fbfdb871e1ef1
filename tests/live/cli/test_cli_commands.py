"""The tool as a person uses it, against a running broker: what it does, prints and refuses."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.cli.main import main

NOBODY = "127.0.0.1:1"


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Run = Callable[..., Ran]


@pytest.fixture
def run(broker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process; the broker's address comes from the environment, as for a user."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> Ran:
        capsys.readouterr()
        status = main(list(words))
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


def shell(broker: Any, *words: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the tool as a process of its own, with real pipes."""
    return subprocess.run(
        [sys.executable, "-m", "ottla", *words],
        input=stdin,
        capture_output=True,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap} | environment,
        timeout=60,
    )


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "input.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


# Topics


def test_a_topic_from_its_making_to_its_end(run: Run, topic: str) -> None:
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
    assert len(document["partitions"]) == 4 and document["configs"] == {}
    assert run("topic", "delete", topic).out == f"deleted {topic}\n"
    assert run("topic", "describe", topic).status == 1


def test_columns_line_up_in_a_pipe(run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "2")
    lines = run("topic", "describe", topic).lines
    header = next(line for line in lines if line.startswith("PARTITION"))
    rows = lines[lines.index(header) + 1 :]
    assert len(rows) == 2
    end = header.index("END OFFSET") + len("END OFFSET")
    assert {row[end - 1] for row in rows} == {"0"}
    assert all(line == line.rstrip() for line in lines) and "\x1b" not in "".join(lines)


def test_creating_twice_is_an_error_unless_that_is_fine(run: Run, topic: str) -> None:
    assert run("topic", "create", topic, "--json").json["created"] is True
    again = run("topic", "create", topic)
    assert again.status == 1 and "TOPIC_ALREADY_EXISTS" in again.err
    assert run("topic", "create", topic, "--if-not-exists").status == 0
    assert run("topic", "create", topic, "--if-not-exists", "--json").json == {"topic": topic, "created": False}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "bad name"), "ottla: illegal topic name 'bad name': ' ' (use letters, digits, '.', '_' and '-')"),
        (("create", ".."), "ottla: illegal topic name '..' ('.' and '..' are directories)"),
        (("create", "x" * 250), "ottla: the topic name has 250 characters (at most 249 fit)"),
        (("create", "x", "-c", "retention"), "ottla: --config retention has no '=' (write --config NAME=VALUE)"),
        (("alter", "x"), "ottla: nothing to change (give --partitions, --config or --reset)"),
        (("alter", "x", "-c", "a=1", "--reset", "a"), "ottla: a is both set and reset (give it once)"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_done(run: Run, words: tuple[str, ...], message: str) -> None:
    ran = run("topic", *words)
    assert (ran.status, ran.err.strip(), ran.out) == (2, message, "")


def test_a_setting_that_a_topic_does_not_have_is_refused_by_the_broker(run: Run, topic: str) -> None:
    ran = run("topic", "create", topic, "-c", "no.such.setting=1")
    assert ran.status == 1 and ran.err.startswith("ottla: ") and "no.such.setting" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_partitions_cannot_become_fewer(run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "3")
    ran = run("topic", "alter", topic, "-p", "2")
    assert (ran.status, ran.err.strip()) == (
        2,
        f"ottla: topic {topic} has 3 partitions already (their number can only grow)",
    )


def test_a_missing_topic_is_told_with_the_one_that_was_meant(run: Run, topic: str) -> None:
    run("topic", "create", f"{topic}-orders")
    assert run("topic", "describe", f"{topic}-ordres").err.strip() == (
        f"ottla: topic {topic}-ordres does not exist (did you mean {topic}-orders?)"
    )
    assert run("consume", "zzz").err.strip() == (
        "ottla: topic zzz does not exist (create it with: ottla topic create zzz)"
    )
    assert run("topic", "delete", "zzz").err.strip() == (
        "ottla: topic zzz does not exist (ottla topic list shows what there is)"
    )


# Produce and consume


def test_lines_go_in_and_come_out(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    sent = run("produce", topic, "--file", file("one\ntwo\r\n\nlast without newline"))
    assert sent.status == 0 and sent.out == "" and sent.err.startswith(f"4 records to {topic}, ")
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
    assert full.startswith(f"{topic}-2 0 2") and full.endswith("ann 1 [source=web, empty=]")
    template = run("consume", topic, "-e", "--format", "{partition}/{offset}={key}\\t{value}").lines
    assert template == ["2/0=ann\t1", "2/1=bob\tnull", "2/2=\tempty key"]


def test_a_line_without_key_stops_and_says_which(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    ran = run("produce", topic, "-f", file("a:1\nb\nc:3\n"), "-k", ":")
    assert (ran.status, ran.err.strip()) == (
        2,
        "ottla: line 2 has no ':' between key and value (the lines before it are stored)",
    )
    assert run("consume", topic, "-e").lines == ["1"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_every_acks(run: Run, topic: str, file: Any, codec: str) -> None:
    run("topic", "create", topic, "-p", "1")
    for acks in ("all", "1", "0"):
        assert run("produce", topic, "-f", file(f"{acks}\n" * 50), "-z", codec, "--acks", acks).status == 0
    assert run("consume", topic, "--max", "150").lines == ["all"] * 50 + ["1"] * 50 + ["0"] * 50


def test_text_of_all_the_world_and_bytes_that_are_no_text(run: Run, topic: str, file: Any) -> None:
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
def test_it_begins_where_it_is_told(run: Run, topic: str, file: Any, start: str, expected: list[str]) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("0\n1\n2\n3\n4\n"))
    assert run("consume", topic, "-e", "--from", start).lines == expected


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("consume", "{t}", "--from", "soon"), 2, "ottla: --from soon is no place to begin"),
        (("consume", "{t}", "--from", "77"), 1, "ottla: {t}-0 has no offset 77 (it has 0 to 0)"),
        (("consume", "{t}", "-p", "5"), 2, "ottla: topic {t} has no partition 5 (it has only partition 0)"),
        (("consume", "{t}", "-o", "xml"), 2, "ottla: unknown format xml"),
        (("consume", "{t}", "-o", "{{size}}"), 2, "ottla: the template has no field {{size}}"),
        (("consume", "{t}", "-o", "{{value"), 2, "ottla: the template '{{value' cannot be read"),
        (("consume", "{t}", "--isolation", "none"), 2, "ottla: Invalid value none for configuration isolation.level"),
        (("consume", "{t}", "--set", "fetch.min.byte=1"), 2, "ottla: Unknown setting fetch.min.byte (Did you mean"),
        (("produce", "{t}", "-f", "/no/such/file"), 2, "ottla: /no/such/file: no such file or directory"),
        (("produce", "{t}", "-f", "{f}", "-H", "x"), 2, "ottla: --header 'x' has no name and value"),
        (("produce", "{t}", "-f", "{f}", "-H", "=x"), 2, "ottla: --header '=x' has no name and value"),
        (("produce", "{t}", "-f", "{f}", "-k", ""), 2, "ottla: --key-separator is empty"),
        (("produce", "{t}", "-f", "{f}", "-p", "5"), 2, "ottla: topic {t} has no partition 5"),
        (("produce", "{t}", "-f", "{f}", "-z", "rar"), 2, "ottla: Invalid value rar for configuration"),
        (("produce", "{t}", "-f", "{f}", "--acks", "2"), 2, "ottla: Invalid value 2 for configuration acks"),
        (("produce", "{t}", "-f", "{f}", "--set", "acks=1"), 2, "ottla: acks is given twice"),
        (("produce", "{t}", "-f", "{f}", "--set", "lingerms=1"), 2, "ottla: Unknown setting lingerms (Did you mean"),
        (
            ("produce", "{t}", "-f", "{f}", "--set", "retries=0", "--set", "enable.idempotence=true"),
            2,
            "ottla: Must set retries to non-zero when using the idempotent producer. (",
        ),
    ],
)
def test_mistakes_with_records_are_told_in_one_line(
    run: Run, topic: str, file: Any, words: tuple[str, ...], status: int, message: str
) -> None:
    run("topic", "create", topic, "-p", "1")
    names = {"t": topic, "f": file("x\n")}
    ran = run(*(word.format(**names) for word in words))
    assert ran.status == status and ran.out == ""
    assert ran.err.startswith(message.format(**names)) and len(ran.err.splitlines()) == 1


def test_a_record_that_the_broker_refuses_is_counted_and_fails_the_command(run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1", "-c", "cleanup.policy=compact")
    ran = run("produce", topic, "-f", file("keyless\n"))
    assert ran.status == 1
    assert ran.err.splitlines()[-1].startswith("ottla: 1 record not stored: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_in_a_line(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic)
    run("produce", topic, "-f", file("a\n"))
    for words in (("consume", topic, "-e"), ("topic", "list", "--json")):
        command = [sys.executable, "-m", "ottla", *words, "--bootstrap-server", broker.bootstrap]
        with open("/dev/full", "wb") as full:
            ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert ran.stderr == b"ottla: the output could not be written: no space left on device\n"
        assert ran.returncode == 1


def test_standard_input_and_pipes(broker: Any, run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "1")
    lines = b"".join(b"%d\n" % i for i in range(30_000))
    sent = shell(broker, "produce", topic, stdin=lines)
    assert sent.returncode == 0 and sent.stderr.startswith(b"30,000 records to ")
    read = shell(broker, "consume", topic, "--exit-at-end")
    assert (read.returncode, read.stdout) == (0, lines)


def test_a_reader_that_has_seen_enough_is_no_error(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file(("x" * 100 + "\n") * 20_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap},
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"x" * 100 + b"\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_tail_follows_what_is_written_and_ends_quietly_with_ctrl_c(
    broker: Any, run: Run, topic: str, file: Any
) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("before\n"))
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OTTLA_BOOTSTRAP": broker.bootstrap},
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"before\n"
    run("produce", topic, "-f", file("after\n"))
    assert process.stdout.readline() == b"after\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stdout.read() == b"" and process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


def test_a_terminal_that_lacks_the_letters_gets_them_escaped(broker: Any, run: Run, topic: str, file: Any) -> None:
    run("topic", "create", topic, "-p", "1")
    run("produce", topic, "-f", file("žluť\n"))
    read = shell(broker, "consume", topic, "-e", PYTHONIOENCODING="ascii")
    assert (read.returncode, read.stdout) == (0, b"\\u017elu\\u0165\n")


# The cluster and its settings


def test_the_cluster_in_words_and_in_json(run: Run, broker: Any) -> None:
    shown = run("cluster")
    assert broker.bootstrap in shown.out and "controller" in shown.out.lower()
    document = run("cluster", "--json").json
    assert [f"{b['host']}:{b['port']}" for b in document["brokers"]] == [broker.bootstrap]
    assert document["brokers"][0]["controller"] is True
    apis = {api["api"]: api for api in run("cluster", "--apis", "--json").json}
    assert apis["Fetch"]["max"] >= 12
    assert run("cluster", "--apis").lines[0].split() == ["KEY", "API", "FROM", "TO"]


def test_settings_are_shown_changed_and_put_back(run: Run, topic: str) -> None:
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
        (("describe", "broker", "99"), 2, "ottla: there is no broker 99"),
        (("describe", "broker", "first"), 2, "ottla: 'first' is no broker id"),
        (("describe", "table", "x"), 2, "ottla: invalid value for 'KIND'"),
        (("alter", "broker", "0"), 2, "ottla: nothing to change (give --set NAME=VALUE or --reset NAME)"),
        (("alter", "broker", "0", "--set", "x"), 2, "ottla: --set x has no '='"),
    ],
)
def test_mistakes_with_settings(run: Run, words: tuple[str, ...], status: int, message: str) -> None:
    ran = run("config", *words)
    assert ran.status == status and ran.err.startswith(message)


# Everything else that can be wrong


@pytest.mark.parametrize(
    "words",
    [("topic", "list"), ("cluster",), ("produce", "t"), ("consume", "t"), ("config", "describe", "topic", "t")],
)
def test_without_a_broker_it_says_where_it_looked_and_how_to_start_one(
    run: Run, words: tuple[str, ...], tmp_path: Path
) -> None:
    extra = ["--file", os.devnull] if words[0] == "produce" else []
    ran = run(*words, *extra, "--bootstrap", NOBODY)
    assert ran.status == 1 and ran.out == ""
    assert ran.err.strip() == (
        f"ottla: cannot connect to {NOBODY}: connection refused "
        "(start a broker with: ottla serve — or name another with --bootstrap HOST:PORT)"
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "ottla: Invalid url in bootstrap.servers: nowhere (Write host:port, as in 127.0.0.1:9092.)"),
        ("", "ottla: --bootstrap is empty (write HOST:PORT, as in 127.0.0.1:9092)"),
    ],
)
def test_an_address_that_is_none(run: Run, address: str, message: str) -> None:
    ran = run("cluster", "--bootstrap", address)
    assert (ran.status, ran.err.strip()) == (2, message)


def test_of_several_addresses_one_that_answers_is_enough(run: Run, broker: Any) -> None:
    assert run("cluster", "--bootstrap", f"{NOBODY},{broker.bootstrap}").status == 0


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("frobnicate",), "ottla: no such command 'frobnicate' (ottla --help shows"),
        (("topic", "create"), "ottla: missing argument"),
        (("consume", "t", "--nope"), "ottla: no such option: --nope (ottla consume --help shows"),
        (("topic", "create", "t", "-p", "many"), "ottla: invalid value for '--partitions' / '-p'"),
        (("topic", "create", "t", "-p", "0"), "ottla: invalid value for '--partitions' / '-p'"),
        (("config", "describe", "topics", "t"), "ottla: invalid value for 'KIND': 'topics' is not one of"),
    ],
)
def test_words_that_make_no_command(run: Run, words: tuple[str, ...], start: str) -> None:
    ran = run(*words)
    assert ran.status == 2 and ran.err.startswith(start) and len(ran.err.splitlines()) == 1


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
        ("config", "describe"),
        ("config", "alter"),
        ("log", "dump"),
        ("demo",),
        ("pipeline", "run"),
        ("pipeline", "validate"),
        ("pipeline", "status"),
    ],
)
def test_help_is_there_and_shows_examples(run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*words, "--help")
    assert ran.status == 0 and "Usage: ottla" in ran.out
    is_group = words in ((), ("topic",))
    assert is_group or "Examples:" in ran.out
    examples = [line for line in ran.out.partition("Examples:")[2].partition("╭")[0].splitlines() if line.strip()]
    assert all(line.startswith("   ") for line in examples), "none is broken at 80 columns"


def test_without_a_word_it_shows_what_there_is(run: Run) -> None:
    ran = run()
    assert ran.status == 2 and "Usage: ottla" in ran.out + ran.err and "consume" in ran.out + ran.err


def test_the_version(run: Run) -> None:
    import ottla

    assert run("--version").out == f"ottla {ottla.__version__}\n"


def test_the_demo_counts_every_record_once(run: Run, broker: Any) -> None:
    ran = run("demo", "--broker", "--records", "2000", "--bootstrap", broker.bootstrap, "--json")
    assert ran.status == 0
    assert (ran.json["records"], ran.json["duplicates"], ran.json["missing"]) == (2000, 0, 0)
    assert "ottla-demo" not in run("topic", "list").out
