"""Reads a pipeline from a Python file: functions of DataFrames with the decorator @pipeline."""

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ottla.errors import ConfigError, OttlaError, error_text_with_type
from ottla.pipeline.definition.document import read_pipeline
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.definition.problems import PipelineError, Problem

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__ottla_pipeline__"
MARKED = "__ottla_pipelines__"
"""The module attribute with all its pipelines, including those hidden by a second `def` of the same name."""
MODULE = "ottla_pipeline_file_"
BEFORE_SPARK = "Spark is not running yet when the file is read: create columns and UDFs inside the function"
CALL_IT = "Use @pipeline(source=…, sink=…)."
SHARED = ("checkpoint", "bootstrap", "kafka", "spark", "master", "tables")


@dataclass(frozen=True)
class Declared:
    """The arguments of a function's decorator, and its line."""

    keys: Mapping[str, Any]
    line: int


def topic(name: str | Sequence[str] = (), /, **keys: Any) -> dict[str, Any]:
    """A topic to read or to write. As a source it takes schema, watermark, on_bad_record, …; as a sink it takes key.

    With `topic_column` instead of a name, a sink writes each row to the topic in that column.

    >>> topic("orders", schema="id bigint, at timestamp", watermark="at 10 minutes")
    {'topic': 'orders', 'schema': 'id bigint, at timestamp', 'watermark': 'at 10 minutes'}
    """
    if not name:
        return keys
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
    function: None = None,
    /,
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
    """Declares a function as a pipeline.

    With `source` it is called with one DataFrame, with `sources` and `tables` with one for each, by name. The function
    itself is not changed, so a test can call it with any DataFrame.
    """
    if function is not None:
        raise ConfigError("@pipeline has no source and no sink", CALL_IT)
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
        if not inspect.isfunction(function):
            raise ConfigError(f"@pipeline decorates {function!r}, which is not a function", "Put it above a `def`.")
        keys = {key: value for key, value in given.items() if value is not None}
        setattr(function, MARK, Declared(keys, function.__code__.co_firstlineno))
        function.__globals__.setdefault(MARKED, []).append(function)
        return function

    return mark


def read_python(path: Path, changes: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file: all its functions with the decorator."""
    functions = _functions(path)
    file = str(path)
    if not functions:
        raise PipelineError(
            [
                Problem(
                    file,
                    None,
                    "",
                    "no function has the decorator @pipeline",
                    "Import it: from ottla.pipeline import pipeline.",
                )
            ]
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
    """Several functions are the outputs of one pipeline, named after the file. Equal sources of one name are shared."""
    document: dict[str, Any] = {"sources": {}, "outputs": {}}
    lines: dict[tuple[str, ...], int] = {}
    for name, function in functions.items():
        declared: Declared = getattr(function, MARK)
        keys = dict(declared.keys)
        called = str(keys.pop("name", name))
        if called in document["outputs"]:
            _refuse(path, declared, called, "another function of this file has this name", "Rename one of them.")
        inputs = _named_sources(path, declared, keys)
        taken = _merge(document["sources"], inputs, called)
        for key in SHARED:
            if key in keys:
                value = keys.pop(key)
                if key == "tables":
                    if not isinstance(value, Mapping):
                        _refuse(path, declared, key, f"is {value!r}; it must be a dict", "Use {name: …}.")
                    taken |= _merge(document.setdefault("tables", {}), value, called)
                elif document.setdefault(key, value) != value:
                    _refuse(path, declared, key, "another function sets another value", "Set it in one function only.")
        document["outputs"][called] = {
            **keys,
            "sources": list(taken.values()),
            "parameters": list(taken),
        }
        lines |= {("outputs", called): declared.line, ("outputs",): declared.line}
        lines |= {("sources", taken[each]): declared.line for each in inputs}
    document |= _changed(path, changes)
    named = {str(getattr(function, MARK).keys.get("name", name)): function for name, function in functions.items()}
    made = read_pipeline(document, str(path), lines=lines, functions=named)
    for called, function in named.items():
        declared = getattr(function, MARK)
        inputs = dict.fromkeys(made.outputs[called].parameters)
        _check_parameters(path, declared, function, inputs, one="source" in declared.keys)
    return made


def _named_sources(path: Path, declared: Declared, keys: dict[str, Any]) -> dict[str, Any]:
    """The sources of one function by name; a single one is named after its topic."""
    several, one = keys.pop("sources", None), keys.pop("source", None)
    if several is not None and one is not None:
        _refuse(path, declared, "source", "source and sources cannot be combined", "Put all of them under sources.")
    if several is not None and not isinstance(several, Mapping):
        _refuse(path, declared, "sources", f"is {several!r}; it must be a dict", 'Use {"orders": topic(…)}.')
    if one is None:
        return dict(several or {})
    if not isinstance(one, str | Mapping):
        _refuse(path, declared, "source", f"is {one!r}; it must be a topic", 'Use topic("orders").')
    if isinstance(one, str):
        one = {"topic": one}
    topics = one.get("topics")
    first = one.get("topic") or (topics[0] if isinstance(topics, list | tuple) and topics else "source")
    name = one.get("name") or "".join(c if c.isalnum() else "_" for c in str(first))
    return {str(name): {key: value for key, value in one.items() if key != "name"}}


def _merge(into: dict[str, Any], more: Mapping[str, Any], function: str) -> dict[str, str]:
    """Adds sources or tables of a function to those of the file, and returns their names there.

    They keep their names, unless another function uses the name for something else.
    """
    names = {}
    suffix = re.sub(r"\W", "_", function)
    for name, value in more.items():
        names[name] = name
        if into.setdefault(name, value) != value:
            names[name] = f"{name}_{suffix}"
            into[names[name]] = value
    return names


def _refuse(path: Path, declared: Declared, key: str, cause: str, hint: str) -> NoReturn:
    raise PipelineError([Problem(str(path), declared.line, key, cause, hint)])


def _check_parameters(
    path: Path, declared: Declared, function: Callable[..., Any], inputs: Mapping[str, Any], *, one: bool
) -> None:
    signature = inspect.signature(function)
    try:
        if one and len(inputs) == 1:
            signature.bind(None)
        else:
            signature.bind(**dict.fromkeys(inputs))
    except TypeError as error:
        wanted = "one DataFrame" if one and len(inputs) == 1 else ", ".join(inputs)
        _refuse(path, declared, function.__name__, f"cannot be called with {wanted}: {error}", "Fix its parameters.")


def _changed(path: Path, changes: Mapping[str, str]) -> dict[str, Any]:
    """`--set` for a Python file: the keys of the whole pipeline."""
    allowed = ("name", "guarantee", "checkpoint", "trigger", "bootstrap", "master", "output_mode")
    for name in changes:
        if name not in allowed:
            problem = Problem(
                str(path),
                None,
                f"--set {name}",
                "this key cannot be set for a Python file",
                f"Use one of {', '.join(allowed)}.",
            )
            raise PipelineError([problem])
    return dict(changes)


def _functions(path: Path) -> dict[str, Callable[..., Any]]:
    name = MODULE + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OttlaError(f"{path} is not a Python file", "Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file can import modules next to it, as when Python runs it.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        cause = f"the file calls sys.exit({error.code!r})"
        hint = 'Put code that runs as a script under if __name__ == "__main__".'
        raise PipelineError([Problem(str(path), _line(path, error), "", cause, hint)]) from None
    except Exception as error:
        raise PipelineError([_where_it_failed(path, error)]) from None
    finally:
        sys.path.pop(0)
    _refuse_hidden(path, getattr(module, MARKED, []))
    found: dict[str, Callable[..., Any]] = {}
    for each, value in vars(module).items():
        # A second name for the same function is not a second pipeline.
        if hasattr(value, MARK) and callable(value) and not any(value is other for other in found.values()):
            found[each] = value
    return found


def _refuse_hidden(path: Path, marked: Sequence[Callable[..., Any]]) -> None:
    """Rejects a second `def` of one name, which would silently replace the first."""
    seen: set[str] = set()
    for function in marked:
        name = function.__qualname__
        if name in seen and "<locals>" not in name:
            declared: Declared = getattr(function, MARK)
            _refuse(path, declared, name, "another function of this file has this name", "Rename one of them.")
        seen.add(name)


def carry_to_workers(path: Path) -> None:
    """Makes Spark pickle the functions of a pipeline's file, and of modules next to it, by value.

    By default it pickles only their names, and its workers cannot import modules that are not installed.
    """
    from pyspark import cloudpickle

    directory = path.parent.resolve()
    for name, module in list(sys.modules.items()):
        if name == MODULE + path.stem or _lies_in(directory, name, module):
            cloudpickle.register_pickle_by_value(module)


def _lies_in(directory: Path, name: str, module: Any) -> bool:
    """Whether a module or its package is a file of this directory, and not of a .venv inside it."""
    top, file = name.partition(".")[0], getattr(module, "__file__", None)
    if file is None or top in ("ottla", "__main__") or getattr(module, "__name__", None) != name:
        return False
    try:
        within = Path(file).resolve().relative_to(directory)
    except ValueError:
        return False
    return within.parts[0] in (top, f"{top}.py")


def _where_it_failed(path: Path, error: Exception) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(str(path), error.lineno, "", f"syntax error: {error.msg}", "Fix this line.")
    line = _line(path, error)
    if isinstance(error, ConfigError):
        return Problem(str(path), line, "", error.message, error.hint)
    if _needs_spark(error):
        hint = 'Or pass the type of a UDF as an object, for example StringType() instead of "string".'
        return Problem(str(path), line, "", BEFORE_SPARK, hint)
    cause = error_text_with_type(error)
    return Problem(str(path), line, "", cause, "The file cannot be imported. Fix this line.")


def _needs_spark(error: Exception) -> bool:
    """Whether PySpark failed because there is no session: by its error class, or by an assertion without a text."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and not str(error) and "pyspark" in Path(frames[-1].filename).parts


def _line(path: Path, error: BaseException) -> int | None:
    """The last line of this file in the traceback of an error."""
    names = (str(path), str(path.absolute()))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in names]
    return frames[-1].lineno if frames else None
