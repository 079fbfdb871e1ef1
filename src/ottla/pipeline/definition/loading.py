"""Reads a pipeline from a YAML or Python file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ottla.errors import OttlaError
from ottla.pipeline.definition.model import DatabaseSink, Output, Pipeline, Table
from ottla.pipeline.definition.python_file import read_python
from ottla.pipeline.definition.yaml_file import read_yaml


def load(path: Path, changes: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file. Raises PipelineError with every mistake that can be found without Spark."""
    if not path.exists():
        raise OttlaError(f"file {path} does not exist", "Pass a .yaml or .py file with a pipeline.")
    if path.suffix in (".yaml", ".yml"):
        found = read_yaml(path, changes)
    elif path.suffix == ".py":
        found = read_python(path, changes)
    else:
        raise OttlaError(f"{path} is neither YAML nor Python", "The file name must end in .yaml, .yml or .py.")
    return with_absolute_paths(found, path.absolute().parent)


def with_absolute_paths(found: Pipeline, directory: Path) -> Pipeline:
    """Relative paths of a pipeline are relative to its file, not to the working directory."""
    return replace(
        found,
        checkpoint=_absolute(found.checkpoint, directory),
        tables={name: _absolute_table(table, directory) for name, table in found.tables.items()},
        outputs={name: _absolute_sink(output, directory) for name, output in found.outputs.items()},
    )


def _absolute(path: str, directory: Path) -> str:
    return path if ":" in path.split("/")[0] else str(directory / path)


def _absolute_table(table: Table, directory: Path) -> Table:
    return replace(table, path=_absolute(table.path, directory))


def _absolute_sink(output: Output, directory: Path) -> Output:
    sink = output.sink
    if not isinstance(sink, DatabaseSink) or not sink.url.startswith("sqlite:///"):
        return output
    path = directory / sink.url.removeprefix("sqlite:///")
    return replace(output, sink=replace(sink, url=f"sqlite:///{path}"))
