"""The style as a test: imports point left, pure modules stay pure, only the clock reads the time."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ottla"
BASE = ["types", "errors", "config", "clock", "protocol", "assignors", "net"]
BROKER_CHAIN = [*BASE, "log", "metadata", "replication", "coordinator", "broker"]
CLIENT_CHAIN = [*BASE, "client", "spark", "pipeline", "cli", "console", "pytest_plugin"]
# What may look further, and why.
ALLOWED = {
    ("cli/serve.py", "broker"): "starting a broker is this command's job",
    ("cli/log.py", "log"): "reads segment files from disk, without a broker",
    ("cli/demo/command.py", "broker"): "shows the embedded broker",
    ("cli/demo/broker.py", "broker"): "shows the embedded broker",
    ("cli/pipeline/broker.py", "broker"): "a pipeline without brokers gets one of its own",
    ("pytest_plugin.py", "broker"): "a broker for tests is what it is for",
}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "testing" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "ottla"}
    return found


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
            f"{name_of(path)} reaches {target}"
            for target in layers_used_by(path)
            if (name_of(path), target) not in ALLOWED
            and (target not in chain or chain.index(target) > chain.index(layer))
        ]
    assert not wrong


def test_every_module_says_what_lives_in_it() -> None:
    silent = [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_pure_modules_stay_pure() -> None:
    impure = {"asyncio", "socket", "threading", "time", "select", "subprocess"}
    wrong = []
    for path in MODULES:
        opening = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        if opening.rstrip().endswith("Pure."):
            wrong += [f"{name_of(path)} calls itself pure but imports {name}" for name in impure & imports_of(path)]
    assert not wrong


def test_only_the_clock_reads_the_time() -> None:
    readers = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}
    wrong = [
        f"{name_of(path)}:{node.lineno} reads the time; take a clock as an argument"
        for path in MODULES
        if name_of(path) != "clock.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
        and node.attr in readers
    ]
    assert not wrong


def test_no_file_outgrows_a_reader() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: lines for name, lines in sizes.items() if lines > 700}, "split these"
