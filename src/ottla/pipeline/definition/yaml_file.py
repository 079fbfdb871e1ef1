"""Reads a pipeline from YAML, with the line of every key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.pipeline.definition.document import read_pipeline
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.definition.problems import PipelineError, Problem

Path_ = tuple[str, ...]


def read_yaml(path: Path, changes: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file. The values of `--set` override those of the file."""
    document, lines = parse(path)
    for name, value in (changes or {}).items():
        apply_change(document, lines, name, value, str(path))
    return read_pipeline(document, str(path), lines=lines)


def parse(path: Path) -> tuple[Any, dict[Path_, int]]:
    """The document of a file, and the line of every key in it."""
    try:
        import yaml
    except ImportError:
        raise OttlaError("reading YAML needs PyYAML", "Run pip install 'ottla[spark]'.") from None
    text = _text(path)
    lines: dict[Path_, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, lines
        document = _value(loader, node, (), lines, str(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        cause = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise PipelineError(
            [
                Problem(
                    str(path),
                    mark.line + 1 if mark else None,
                    "",
                    f"this is not YAML: {cause}",
                    "Check indentation and colons; quote text that contains `: ` or `#`.",
                )
            ]
        ) from None
    except yaml.YAMLError as error:
        raise PipelineError([Problem(str(path), None, "", f"this is not YAML: {error}")]) from None
    return document, lines


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OttlaError(f"{path} cannot be read: {error.strerror}", "Pass a .yaml or .py file.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        cause = f"this is not UTF-8: byte 0x{data[error.start]:02x}"
        raise PipelineError([Problem(str(path), line, "", cause, "Save the file as UTF-8.")]) from None


def _value(loader: Any, node: Any, path: Path_, lines: dict[Path_, int], file: str) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in found:
                problem = Problem(file, line, ".".join((*path, key)), "is set twice", "Remove one of them.")
                raise PipelineError([problem])
            lines[(*path, key)] = line
            if isinstance(value_node, yaml.ScalarNode):  # the line where its text begins: a block begins under the key
                lines[(*path, key, "")] = value_node.start_mark.line + (2 if value_node.style in ("|", ">") else 1)
            found[key] = _value(loader, value_node, (*path, key), lines, file)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, path, lines, file) for item in node.value]
    value = loader.construct_object(node, deep=True)
    return value if value is None or isinstance(value, str | int | float | bool) else str(node.value)


def apply_change(document: Any, lines: dict[Path_, int], name: str, text: str, file: str) -> None:
    """Overrides the value under a dotted name, for example `sources.orders.starting_offsets`.

    Names in `options`, `kafka` and `spark` contain dots: there the rest is one name.
    """
    import yaml

    place, rest = document, name.split(".")
    path: Path_ = ()
    while len(rest) > 1 and not (path and path[-1] in ("options", "kafka", "spark")):
        if not isinstance(place, dict):
            raise _without_keys(file, name, path)
        place = place.setdefault(rest[0], {})
        path, rest = (*path, rest[0]), rest[1:]
    if not isinstance(place, dict):
        raise _without_keys(file, name, path)
    try:
        place[".".join(rest)] = yaml.safe_load(text)
    except yaml.YAMLError:
        place[".".join(rest)] = text


def _without_keys(file: str, name: str, path: Path_) -> PipelineError:
    place = ".".join(path) or "the file"
    hint = "Use the name of a key in the file, for example source.topic."
    return PipelineError([Problem(file, None, f"--set {name}", f"{place} has no keys", hint)])
