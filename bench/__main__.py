"""`./run bench`: compares Ottla with Apache Kafka and librdkafka's mock cluster in one interleaved run.

Each suite runs several rounds, and each round measures every contender once, so that a slow phase of the machine
affects all of them. Tables show best and median values, and the ratio of the medians.
"""

import argparse
import gc
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import (
    acls,
    arrow,
    assignors,
    brokers,
    clients,
    cluster,
    cores,
    groups,
    hostile,
    kernels,
    memory,
    partitions,
    scale,
    spark,
    startup,
    stores,
    throughput,
    tls,
    transactions,
    wire,
)
from bench.results import Results, machine

SUITES = (
    "throughput",
    "latency",
    "requests",
    "groups",
    "transactions",
    "startup",
    "partitions",
    "kernels",
    "clients",
    "arrow",
    "assignors",
    "memory",
    "spark",
    "hostile",
    "cluster",
    "cores",
    "stores",
    "scale",
    "acls",
    "tls",
)

OWN: dict[str, Callable[..., None]] = {
    "acls": acls.run,
    "clients": clients.run,
    "arrow": arrow.run,
    "assignors": assignors.run,
    "memory": memory.run,
    "partitions": partitions.run,
    "scale": scale.run,
    "spark": spark.run,
    "stores": stores.run,
}
"""Suites that start their own brokers and contenders."""

NAMED: dict[str, Callable[..., None]] = {
    "startup": startup.run,
    "cluster": cluster.run,
    "cores": cores.run,
    "tls": tls.run,
}
"""Suites that start the chosen contenders themselves."""

EXAMPLES = """\
examples:
  ./run bench --quick                            # all suites, a tenth of the work
  ./run bench --only throughput --only latency   # two suites
  ./run bench --only startup --brokers ottla     # without Apache Kafka and the mock cluster
  ./run bench --only clients --rounds 10 --json clients.json
  ./run bench --only hostile --seconds 600 --brokers ottla

Apache Kafka is included if its jars are installed (./run setup-extras).
"""


LINE_EVERY_S = 5.0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description=(__doc__ or "").partition(": ")[2],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    suites = ", ".join(SUITES)
    parser.add_argument(
        "--only", choices=SUITES, action="append", metavar="SUITE", help=f"run only this suite; repeatable: {suites}"
    )
    parser.add_argument(
        "--brokers", default="ottla,kafka,mock", metavar="NAMES", help="contenders (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help="counted rounds (default: 5, quick: 2)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=None,
        metavar="N",
        help=f"duration of the suite hostile (default: {hostile.SECONDS:g}, quick: {hostile.QUICK_SECONDS:g})",
    )
    parser.add_argument(
        "--attacks",
        type=attack_names,
        default=list(hostile.ATTACK_NAMES),
        metavar="NAMES",
        help=f"attacks of the suite hostile (default: all): {', '.join(hostile.ATTACK_NAMES)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    return parser.parse_args(arguments)


def attack_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in hostile.ATTACK_NAMES:
            raise argparse.ArgumentTypeError(f"unknown attack {name}; use one of {', '.join(hostile.ATTACK_NAMES)}")
    return names


def main() -> None:
    options = parse(sys.argv[1:])
    # Tables are wide: outside a terminal do not wrap them.
    console = Console() if sys.stdout.isatty() else Console(width=280)
    suites = options.only or SUITES
    names = []
    for name in options.brokers.split(","):
        if name not in brokers.CONTENDERS:
            console.print(f"bench: unknown contender {name}; use one of {', '.join(brokers.CONTENDERS)}")
            sys.exit(2)
        reason = brokers.unavailable(name)
        if reason is None:
            names.append(name)
        else:
            console.print(f"without {name}: {reason}")
    results = Results(brokers.titles())
    command = "./run bench" + "".join(f" {shlex.quote(argument)}" for argument in without_files(sys.argv[1:]))
    console.print(f"[bold]{command}[/bold]  {machine()}")
    # An interrupted run still reports the measurements so far.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for suite in suites:
            run_suite(suite, names, results, rounds_of(suite, options), options, console)
    finally:
        if options.json:
            results.write_json(options.json, command)
        if options.markdown:
            options.markdown.write_text(results.markdown(command))
    if results.failures:
        console.print(*(f"failed: {failure}" for failure in results.failures), sep="\n", markup=False)
        sys.exit(1)


def rounds_of(suite: str, options: argparse.Namespace) -> int:
    """How often a suite is repeated. One round of hostile peers or of cluster faults takes minutes."""
    default = 1 if suite in ("hostile", "cluster") else 2 if options.quick else 3 if suite == "cores" else 5
    return int(options.rounds or default)


def without_files(arguments: list[str]) -> list[str]:
    """The arguments without output files, for the command line in the results."""
    kept = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in ("--json", "--markdown"):
            skip = True
        elif not argument.startswith(("--json=", "--markdown=")):
            kept.append(argument)
    return kept


def run_suite(
    suite: str, names: list[str], results: Results, rounds: int, options: argparse.Namespace, console: Console
) -> None:
    before = set(results.suites())
    columns = (
        TextColumn(f"[bold]{suite}[/bold]"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    gc.collect()
    began, done, steps = time.monotonic(), 0, 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def step(description: str = "", *, total: int | None = None) -> None:
            """Shows the next step, or sets the number of steps. Outside a terminal one line every few seconds."""
            nonlocal done, steps
            if total is not None:
                steps = total
                progress.update(task, total=total)
                return
            progress.update(task, description=description, completed=done)
            if not console.is_terminal and lines.is_due():
                elapsed = time.monotonic() - began
                print(f"{suite}: {elapsed:4.0f} s, step {done + 1} of {steps}: {description}", file=sys.stderr)
            done += 1

        lines = Every(LINE_EVERY_S)
        try:
            measure(suite, names, results, rounds, options, step)
        except Exception as error:
            results.failures.append(f"{suite}: {type(error).__name__}: {error}")
        finally:
            progress.stop()
            for name in results.suites():
                if name not in before:
                    results.show(console, name)


class Every:
    """A rate limit: is due once in some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def measure(
    suite: str, names: list[str], results: Results, rounds: int, options: argparse.Namespace, step: Callable[..., None]
) -> None:
    quick = options.quick
    if suite == "kernels":
        measure_kernels(results, rounds)
        return
    if suite in OWN:
        OWN[suite](results, rounds, quick, step)
        return
    if suite in NAMED:
        NAMED[suite](names, results, rounds, quick, step)
        return
    if suite == "hostile":
        hostile.run(names, results, rounds, quick, step, seconds=options.seconds, attacks=options.attacks)
        return
    with brokers.running(names) as contenders:
        run: Any = {
            "throughput": throughput.run,
            "latency": wire.run_latency,
            "requests": wire.run_requests,
            "groups": groups.run,
            "transactions": transactions.run,
        }[suite]
        run(contenders, results, rounds, quick, step)


def measure_kernels(results: Results, rounds: int) -> None:
    """The record kernels and those of other Python clients, which report best and median themselves."""
    for row in kernels.run(max(rounds, 3)):
        for value in (row.best_ns, row.median_ns, row.median_ns):
            results.add("kernels", row.work, f"ns/{row.unit}", row.contender, value)


if __name__ == "__main__":
    main()
