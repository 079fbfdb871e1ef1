"""Reads a pipeline from a Python file: functions of DataFrames, with a decorator that says the rest."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ottla.errors import OttlaError
from ottla.pipeline.document import read_pipeline
from ottla.pipeline.model import Pipeline
from ottla.pipeline.problems import PipelineError, Problem

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__ottla_pipeline__"
SHARED = ("checkpoint", "bootstrap", "kafka", "spark", "master", "tables")


@dataclass(frozen=True)
class Declared:
    """What a decorator said of a function."""

    keys: Mapping[str, Any]
    line: int


def topic(name: str | Sequence[str], **keys: Any) -> dict[str, Any]:
    """A topic to read or to write. As a source it takes schema, watermark, on_bad_record, …; as a sink it takes key.

    >>> topic("orders", schema="id bigint, at timestamp", watermark="at 10 minutes")
    {'topic': 'orders', 'schema': 'id bigint, at timestamp', 'watermark': 'at 10 minutes'}
    """
    return {"topic": name, **keys} if isinstance(name, str) else {"topics": list(name), **keys}


def database(url: str, table: str, **keys: Any) -> dict[str, Any]:
    """A table of a database to write to. Takes upsert_keys and options.

    >>> database("sqlite:///shop.db", "orders", upsert_keys=["id"])
    {'url': 'sqlite:///shop.db', 'table': 'orders', 'upsert_keys': ['id']}
    """
    return {"url": url, "table": table, **keys}


def table(path: str, **keys: Any) -> dict[str, Any]:
    """Files to join with, read once at the start. Takes format, schema and options."""
    return {"path": path, **keys}


def pipeline(
    *,
    source: Any = None,
    sources: Mapping[str, Any] | None = None,
    sink: Any = None,
    name: str | None = None,
    guarantee: str | None = None,
    trigger: str | None = None,
    output_mode: str | None = None,
    checkpoint: str | None = None,
    tables: Mapping[str, Any] | None = None,
    bootstrap: str | None = None,
    kafka: Mapping[str, Any] | None = None,
    spark: Mapping[str, Any] | None = None,
    master: str | None = None,
) -> Callable[[F], F]:
    """Makes a function a pipeline. With `source` it is called with one DataFrame; with `sources` and `tables` with one
    for each, by name. The function itself stays as it was, so that a test can call it with any DataFrame.
    """
    given = {
        "source": source,
        "sources": sources,
        "sink": sink,
        "name": name,
        "guarantee": guarantee,
        "trigger": trigger,
        "output_mode": output_mode,
        "checkpoint": checkpoint,
        "tables": tables,
        "bootstrap": bootstrap,
        "kafka": kafka,
        "spark": spark,
        "master": master,
    }

    def mark(function: F) -> F:
        keys = {key: value for key, value in given.items() if value is not None}
        setattr(function, MARK, Declared(keys, function.__code__.co_firstlineno))
        return function

    return mark


def read_python(path: Path, changes: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file: all the functions in it that have the decorator."""
    functions = _functions(path)
    file = str(path)
    if not functions:
        raise PipelineError(
            [Problem(file, None, "", "no function has the decorator @pipeline", "from ottla.pipeline import pipeline")]
        )
    if len(functions) == 1:
        return _single(path, *next(iter(functions.items())), changes or {})
    return _several(path, functions, changes or {})


def _single(path: Path, name: str, function: Callable[..., Any], changes: Mapping[str, str]) -> Pipeline:
    declared: Declared = getattr(function, MARK)
    document = {"name": name, **declared.keys, **_changed(path, changes)}
    lines: dict[tuple[str, ...], int] = {(key,): declared.line for key in document}
    called = str(document["name"])
    made = read_pipeline(document, str(path), lines=lines, functions={called: function})
    _check_parameters(path, declared, function, {**made.sources, **made.tables}, one="source" in declared.keys)
    return made


def _several(path: Path, functions: Mapping[str, Callable[..., Any]], changes: Mapping[str, str]) -> Pipeline:
    """Several functions are the outputs of one pipeline, named after the file. They may share sources by name."""
    document: dict[str, Any] = {"sources": {}, "outputs": {}}
    lines: dict[tuple[str, ...], int] = {}
    for name, function in functions.items():
        declared: Declared = getattr(function, MARK)
        keys = dict(declared.keys)
        called = str(keys.pop("name", name))
        inputs = _named_sources(keys)
        _merge(document["sources"], inputs, path, declared, "source")
        for key in SHARED:
            if key in keys:
                value = keys.pop(key)
                if key == "tables":
                    _merge(document.setdefault("tables", {}), value, path, declared, "table")
                elif document.setdefault(key, value) != value:
                    _refuse(path, declared, key, "differs from that of another function", "Give it once.")
        document["outputs"][called] = {
            **keys,
            "sources": [*inputs, *(declared.keys.get("tables") or {})],
        }
        lines |= {("outputs", called): declared.line, ("outputs",): declared.line}
        lines |= {("sources", each): declared.line for each in inputs}
    document |= _changed(path, changes)
    named = {str(getattr(function, MARK).keys.get("name", name)): function for name, function in functions.items()}
    made = read_pipeline(document, str(path), lines=lines, functions=named)
    for called, function in named.items():
        declared = getattr(function, MARK)
        inputs = {each: None for each in made.outputs[called].sources}
        _check_parameters(path, declared, function, inputs, one="source" in declared.keys)
    return made


def _named_sources(keys: dict[str, Any]) -> dict[str, Any]:
    """The sources of one function by name; a single one is named after its topic."""
    several = dict(keys.pop("sources", None) or {})
    one = keys.pop("source", None)
    if one is None:
        return several
    first = one if isinstance(one, str) else one.get("topic") or (one.get("topics") or ["source"])[0]
    given = {key: value for key, value in one.items() if key != "name"} if isinstance(one, dict) else one
    name = one.get("name") if isinstance(one, dict) else None
    return {**several, name or "".join(c if c.isalnum() else "_" for c in str(first)): given}


def _merge(into: dict[str, Any], more: Mapping[str, Any], path: Path, declared: Declared, kind: str) -> None:
    for name, value in more.items():
        if into.setdefault(name, value) != value:
            _refuse(
                path, declared, name, f"another function has a {kind} of this name that differs", "Rename one of them."
            )


def _refuse(path: Path, declared: Declared, key: str, cause: str, cure: str) -> None:
    raise PipelineError([Problem(str(path), declared.line, key, cause, cure)])


def _check_parameters(
    path: Path, declared: Declared, function: Callable[..., Any], inputs: Mapping[str, Any], *, one: bool
) -> None:
    signature = inspect.signature(function)
    try:
        if one and len(inputs) == 1:
            signature.bind(None)
        else:
            signature.bind(**{name: None for name in inputs})
    except TypeError as error:
        wanted = "one DataFrame" if one and len(inputs) == 1 else ", ".join(inputs)
        _refuse(path, declared, function.__name__, f"cannot be called with {wanted}: {error}", "Mend its parameters.")


def _changed(path: Path, changes: Mapping[str, str]) -> dict[str, Any]:
    """`--set` for a Python file: the keys of the whole pipeline."""
    allowed = ("name", "guarantee", "checkpoint", "trigger", "bootstrap", "master", "output_mode")
    for name in changes:
        if name not in allowed:
            problem = Problem(
                str(path), None, f"--set {name}", "a Python file has no such key", f"Use {', '.join(allowed)}."
            )
            raise PipelineError([problem])
    return dict(changes)


def _functions(path: Path) -> dict[str, Callable[..., Any]]:
    name = f"ottla_pipeline_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OttlaError(f"{path} is not a Python file", "Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # What lies beside the file can be imported by it, as when Python runs it.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PipelineError([_where_it_failed(path, error)]) from None
    finally:
        sys.path.pop(0)
    return {each: value for each, value in vars(module).items() if hasattr(value, MARK) and callable(value)}


def _where_it_failed(path: Path, error: Exception) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(str(path), error.lineno, "", f"this is not Python: {error.msg}", "Mend the line.")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()]
    frames = frames or [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = frames[-1].lineno if frames else None
    return Problem(
        str(path), line, "", f"{type(error).__name__}: {error}", "The file cannot be imported: mend the line."
    )
