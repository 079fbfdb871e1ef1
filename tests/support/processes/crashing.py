"""Runs an example in its own process and kills it with SIGKILL at a chosen step.

The example is as users have it: the step is a call of the library (`ottla.client.blocking:Consumer.commit`), counted,
and the process dies right before or right after it. `process` marks what is processed in a file, which survives.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.waiting import PATIENCE_S

PROCESS = "process"


class Step(NamedTuple):
    """Where to kill the process: `before` or `after` the n-th call of module:Class.method, or of `process`."""

    when: str
    call: str
    number: int = 1


def run_example(path: Path, step: Step | None, *arguments: Any, marks: Path | None = None, **options: Any) -> int:
    """Runs `run(*arguments, **options)` of an example; returns the exit code, -SIGKILL if it was killed."""
    order = {"path": str(path), "step": step, "arguments": arguments, "options": options}
    order["marks"] = None if marks is None else str(marks)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.crashing", json.dumps(order)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode


def crash_example(path: Path, step: Step, *arguments: Any, **options: Any) -> None:
    """As run_example, for an example that must be killed."""
    code = run_example(path, step, *arguments, **options)
    assert code == -signal.SIGKILL, f"{path.name} ended with {code} and did not reach {step}"


def load_example(path: Path) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(text: str) -> None:
    order = json.loads(text)
    options = dict(order["options"])
    function = options.pop("function", "run")
    step = Step(*order["step"]) if order["step"] else None
    if order["marks"] is not None:
        options["process"] = _marking(order["marks"])
    if step is not None and step.call == PROCESS:
        options["process"] = _fatal(options["process"], step)
    elif step is not None:
        module_name, _, name = step.call.partition(":")
        class_name, _, method = name.partition(".")
        owner = getattr(importlib.import_module(module_name), class_name)
        setattr(owner, method, _fatal(getattr(owner, method), step))
    getattr(load_example(Path(order["path"])), function)(*order["arguments"], **options)


def _marking(path: str) -> Callable[[Any], None]:
    """Appends each record's value to a file, unbuffered, so that it survives a SIGKILL."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def process(record: Any) -> None:
        os.write(descriptor, (record.value or b"") + b"\n")

    return process


def _fatal(function: Callable[..., Any], step: Step) -> Callable[..., Any]:
    calls = 0

    def reached(when: str) -> None:
        nonlocal calls
        calls += when == "before"
        if calls == step.number and when == step.when:
            os.kill(os.getpid(), signal.SIGKILL)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **options: Any) -> Any:
            reached("before")
            result = await function(*args, **options)
            reached("after")
            return result

        return wait

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        reached("before")
        result = function(*args, **options)
        reached("after")
        return result

    return call


if __name__ == "__main__":
    main(sys.argv[1])
