"""Records `./run demo` in a terminal and writes it as an animated SVG, docs/demo.svg.

    .venv/bin/python tools/record_demo.py                      # record and write docs/demo.svg (about two minutes)
    .venv/bin/python tools/record_demo.py --cast demo.cast     # keep the recording; a second run only renders it

The recording is an asciicast (version 2). The SVG needs no script: a CSS animation moves a strip of frames behind a
window. Viewers that do not animate show the last frame, which is the result of the demo.
"""

import argparse
import codecs
import fcntl
import html
import json
import os
import pty
import re
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 100, 40
PROMPT = "$ "
PLAY_S, HOLD_S, FRAMES_PER_S = 20.0, 7.0, 3.0
"""The recording is compressed to PLAY_S; its last frame stays for HOLD_S before the loop restarts."""
CELL_WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN, TITLE_HEIGHT = 8.4, 19, 14, 16, 34
BACKGROUND, FOREGROUND = "#0d1117", "#d6dde6"
COLOURS = {
    30: "#484f58",
    31: "#ff7b72",
    32: "#56d364",
    33: "#e3b341",
    34: "#79c0ff",
    35: "#d2a8ff",
    36: "#56d4dd",
    37: FOREGROUND,
}
DIM = "#8b949e"
PALETTE = {237: "#30363d", 197: "#f778ba", 106: "#7ee787", 70: "#56d364"}
"""Colours of 256 that rich's progress bars use; others are shown in the colour of the text."""


class Style(NamedTuple):
    """How a character is drawn."""

    colour: str = FOREGROUND
    bold: bool = False


class Run(NamedTuple):
    """Characters of one style next to each other, from a column of a line."""

    column: int
    text: str
    style: Style


Line = tuple[Run, ...]
Frame = tuple[Line, ...]
Event = tuple[float, str]


# Recording


def record(command: Sequence[str]) -> tuple[list[Event], int]:
    """Runs a command in a pseudo-terminal; returns its output with times in seconds, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    events: list[Event] = []
    started = time.monotonic()
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # Linux reports a closed terminal as EIO
            break
        if not data:
            break
        events.append((time.monotonic() - started, decoder.decode(data)))
    os.close(terminal)
    return events, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save_cast(path: Path, events: Iterable[Event]) -> None:
    lines = [json.dumps({"version": 2, "width": COLUMNS, "height": ROWS})]
    lines += [json.dumps([round(at, 3), "o", text]) for at, text in events]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_cast(path: Path) -> list[Event]:
    _, *lines = path.read_text(encoding="utf-8").splitlines()
    return [(at, text) for at, _, text in map(json.loads, lines)]


# The screen


class Screen:
    """A terminal that supports what the demo writes: text, line breaks, cursor up, erase line, and colours."""

    _TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+|\x1b")

    def __init__(self) -> None:
        self._lines: list[list[tuple[str, Style]]] = [[]]
        self._row = self._column = 0
        self._style = Style()
        self._is_dim = False
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        cut = text.rfind("\x1b")
        is_cut = cut >= 0 and re.match(r"\x1b\[\??[\d;]*[A-Za-z]", text[cut:]) is None
        self._rest = text[cut:] if is_cut else ""
        for token in self._TOKEN.finditer(text[:cut] if is_cut else text):
            if token[0] == "\r":
                self._column = 0
            elif token[0] == "\n":
                self._row += 1
                self._column = 0
                while len(self._lines) <= self._row:
                    self._lines.append([])
            elif token[3]:
                self._control(token[1], token[2], token[3])
            else:
                self._write(token[0])

    def _control(self, private: str, numbers: str, kind: str) -> None:
        number = int(numbers.split(";")[0] or 1) if kind != "m" else 0
        if private:  # show and hide the cursor
            return
        if kind == "A":
            self._row = max(0, self._row - number)
        elif kind == "K":
            self._lines[self._row].clear()
        elif kind == "m":
            self._set_style([int(part or 0) for part in numbers.split(";")])
        else:
            raise ValueError(f"control sequence {numbers}{kind} is not supported")

    def _set_style(self, codes: list[int]) -> None:
        while codes:
            code = codes.pop(0)
            if code == 0:
                self._style, self._is_dim = Style(), False
            elif code == 1:
                self._style = self._style._replace(bold=True)
            elif code == 2:
                self._is_dim = True
            elif code == 22:
                self._style, self._is_dim = self._style._replace(bold=False), False
            elif code == 38:
                colour, codes[:] = _extended_colour(codes)
                self._style = self._style._replace(colour=colour)
            elif code in COLOURS or code == 39:
                self._style = self._style._replace(colour=COLOURS.get(code, FOREGROUND))

    def _write(self, text: str) -> None:
        line = self._lines[self._row]
        style = self._style
        if self._is_dim and style.colour == FOREGROUND:
            style = style._replace(colour=DIM)
        for character in text:
            while len(line) <= self._column:
                line.append((" ", Style()))
            line[self._column] = (character, style)
            self._column += 1

    def frame(self) -> Frame:
        lines = [_runs(line) for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines)


def _extended_colour(codes: list[int]) -> tuple[str, list[int]]:
    """The colour after code 38, and the codes that follow it."""
    if codes[:1] == [5]:
        return PALETTE.get(codes[1], FOREGROUND), codes[2:]
    red, green, blue = codes[1:4]
    return f"#{red:02x}{green:02x}{blue:02x}", codes[4:]


def _runs(cells: Sequence[tuple[str, Style]]) -> Line:
    """A line as runs of one style. Runs end at two spaces, so that columns stay aligned in any font."""
    runs: list[Run] = []
    for column, (character, style) in enumerate(cells):
        last = runs[-1] if runs else None
        if last is not None and last.style == style and last.column + len(last.text) == column:
            runs[-1] = last._replace(text=last.text + character)
        else:
            runs.append(Run(column, character, style))
    return tuple(
        run._replace(column=run.column + part.start(), text=part[0])
        for run in runs
        for part in re.finditer(r"\S+(?: \S+)*", run.text)
    )


def frames_of(events: Sequence[Event], command: str) -> list[tuple[float, Frame]]:
    """The frames to show, each with the second at which it appears. The last one is the end of the recording."""
    typed = [Run(0, PROMPT.strip(), Style(DIM)), Run(len(PROMPT), command, Style(bold=True))]
    screen = Screen()
    speed = max(events[-1][0] / PLAY_S, 1.0)
    frames: list[tuple[float, Frame]] = [(0.0, (tuple(typed),))]
    for at, text in events:
        screen.feed(text)
        shown = (tuple(typed), *screen.frame())
        second = at / speed
        if second - frames[-1][0] < 1 / FRAMES_PER_S and len(frames) > 1:
            frames[-1] = (frames[-1][0], shown)
        elif shown != frames[-1][1]:
            frames.append((second, shown))
    return frames


# The picture


def render(frames: Sequence[tuple[float, Frame]]) -> str:
    """The frames as one SVG. Lines are defined once and used by every frame that shows them."""
    rows = max(len(frame) for _, frame in frames)
    width = round(COLUMNS * CELL_WIDTH + 2 * MARGIN)
    inner = rows * LINE_HEIGHT
    height = TITLE_HEIGHT + inner + MARGIN
    numbers: dict[Line, int] = {}
    shown = []
    for index, (_, frame) in enumerate(frames):
        uses = []
        for row, line in enumerate(frame):
            if line:
                number = numbers.setdefault(line, len(numbers))
                uses.append(f'<use href="#l{number}" y="{index * inner + row * LINE_HEIGHT}"/>')
        shown.append("".join(uses))
    total = frames[-1][0] + HOLD_S
    steps = "".join(
        f"{at / total * 100:.2f}%{{transform:translateY(-{index * inner}px)}}" for index, (at, _) in enumerate(frames)
    )
    last = (len(frames) - 1) * inner
    lines = "\n".join(f'<g id="l{number}">{_line(line)}</g>' for line, number in numbers.items())
    strip = "\n".join(shown)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
aria-label="Terminal recording of ottla demo">
<style>
text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.b{{font-weight:bold}}
@media (prefers-reduced-motion:no-preference){{#strip{{animation:play {total:.2f}s step-end infinite}}}}
@keyframes play{{{steps}100%{{transform:translateY(-{last}px)}}}}
</style>
<defs>
{lines}
</defs>
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9" fill="{BACKGROUND}" stroke="#484f58"/>
<circle cx="20" cy="17" r="5.5" fill="#ff5f57"/><circle cx="39" cy="17" r="5.5" fill="#febc2e"/>\
<circle cx="58" cy="17" r="5.5" fill="#28c840"/>
<svg x="{MARGIN}" y="{TITLE_HEIGHT}" width="{width - 2 * MARGIN}" height="{inner}" overflow="hidden">
<g id="strip" transform="translate(0,-{last})">
{strip}
</g>
</svg>
</svg>
"""


def _line(line: Line) -> str:
    return "".join(
        f'<text x="{run.column * CELL_WIDTH:.1f}" y="{FONT_SIZE}" textLength="{len(run.text) * CELL_WIDTH:.1f}" '
        f'fill="{run.style.colour}"{" class=" + chr(34) + "b" + chr(34) if run.style.bold else ""}>'
        f"{html.escape(run.text, quote=False)}</text>"
        for run in line
    )


def check_private(text: str) -> None:
    """Fails if the recording shows the paths or names of this machine."""
    for private in (str(ROOT), str(Path.home()), "/tmp/", socket.gethostname()):
        if len(private) > 1 and private in text:
            raise SystemExit(f"record_demo: the recording contains {private}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record ./run demo and write docs/demo.svg.")
    parser.add_argument("--cast", type=Path, metavar="FILE", help="recording to render; created if it does not exist")
    parser.add_argument("--output", type=Path, metavar="FILE", default=ROOT / "docs" / "demo.svg")
    parser.add_argument("--shown", metavar="TEXT", default="./run demo", help="command line to show in the first line")
    parser.add_argument("command", nargs="*", default=["./run", "demo"], help="command to record")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.cast is not None and options.cast.exists():
        events = load_cast(options.cast)
    else:
        events, status = record(options.command)
        if status != 0:
            sys.stderr.write("".join(text for _, text in events))
            raise SystemExit(f"record_demo: {' '.join(options.command)} failed with exit status {status}")
        if options.cast is not None:
            save_cast(options.cast, events)
    check_private("".join(text for _, text in events))
    frames = frames_of(events, options.shown)
    options.output.write_text(render(frames), encoding="utf-8")
    print(f"wrote {options.output.name}: {len(frames)} frames, {options.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
