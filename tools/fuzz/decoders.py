"""Coverage-guided fuzzing of every decoder of untrusted bytes.

    PYTHONPATH=.:src:.extras/fuzz .venv/bin/python tools/fuzz/decoders.py TARGET [libFuzzer arguments]

The targets are in targets.py. A finding (an exception, a crash, a hang) is written to a file; running the target
with that file replays it. With `all`, the first byte of the input chooses the target.
"""

import sys
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from collections.abc import Callable

with atheris.instrument_imports(include=["ottla"]):
    from tools.fuzz.targets import TARGETS


def everything(data: bytes) -> None:
    if data:
        list(TARGETS.values())[data[0] % len(TARGETS)](data[1:])


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    target: Callable[[bytes], None] | None = everything if name == "all" else TARGETS.get(name)
    if target is None:
        sys.exit(f"usage: decoders.py {{all,{','.join(TARGETS)}}} [libFuzzer arguments]")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
