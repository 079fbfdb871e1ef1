"""The terminal recording in docs/demo.svg, and the tool that makes it."""

import importlib.util
import socket
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_demo", ROOT / "tools" / "record_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recorder = load()


def lines(frame: tuple[tuple[tuple[int, str, object], ...], ...]) -> list[str]:
    shown = []
    for line in frame:
        text = ""
        for column, part, _ in line:
            text = text.ljust(column) + part
        shown.append(text)
    return shown


def test_the_screen_follows_the_cursor_and_erases_lines() -> None:
    screen = recorder.Screen()
    screen.feed("first\r\nsecond\r\x1b[2K\x1b[1A\x1b[2Kchanged\r\nlast   columns")
    assert lines(screen.frame()) == ["changed", "last   columns"]


def test_a_control_sequence_may_be_split_between_two_reads() -> None:
    screen = recorder.Screen()
    screen.feed("\x1b[1;3")
    screen.feed("2mgood\x1b[0m plain")
    (good, plain), *_ = screen.frame()
    assert (good.text, good.style.bold, good.style.colour) == ("good", True, recorder.COLOURS[32])
    assert plain.style == recorder.Style()


def test_an_unknown_control_sequence_is_an_error() -> None:
    with pytest.raises(ValueError, match="not supported"):
        recorder.Screen().feed("\x1b[5;5H")


def test_the_recording_is_compressed_and_ends_with_the_last_frame() -> None:
    frames = recorder.frames_of([(0.0, "a"), (50.0, "b"), (100.0, "\x1b[1mc & d\x1b[0m")], "./run demo")
    assert [at for at, _ in frames] == [0.0, 0.0, 10.0, 20.0]
    assert lines(frames[-1][1]) == ["$ ./run demo", "abc & d"]
    picture = ElementTree.fromstring(recorder.render(frames))
    assert any(text == "c & d" for text in picture.itertext())


def test_the_published_recording_is_small_complete_and_anonymous() -> None:
    path = ROOT / "docs" / "demo.svg"
    assert path.stat().st_size < 300_000
    text = " ".join(ElementTree.fromstring(path.read_text()).itertext())
    for part in ("kill -9", "recovered", "duplicates", "every order was processed exactly once"):
        assert part in text
    for private in ("/tmp", "/home", "/root", f" {socket.gethostname()} "):
        assert private not in text
