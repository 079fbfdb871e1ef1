"""The command line of a suite that is also a program: `python -m bench.arrow`."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from bench.results import Results


def run_one_suite(
    suite: str,
    description: str | None,
    run: Callable[[Results, int, bool, Any], None],
    *,
    rounds: int = 3,
    drivers: Sequence[str] = (),
    serve: Callable[[str], None] | None = None,
) -> None:
    """Runs one suite and shows its results. With --driver, the process serves the suite as that Spark driver."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=rounds)
    if serve is not None:
        parser.add_argument("--driver", choices=drivers, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if serve is not None and options.driver:
        serve(options.driver)
        return
    results = Results({"ottla": "Ottla"})
    run(results, options.rounds, options.quick, lambda *_, **__: None)
    results.show(Console(width=180), suite)
