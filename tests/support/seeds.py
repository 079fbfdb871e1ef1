"""Seeds for simulations and other randomized tests. They come from the commit id, so every commit tries new histories.

The run prints its base seed. `OTTLA_SEED=<base seed> ./run test <test id>` replays a failure; a failing simulated world
also names the one seed that failed, and `OTTLA_SEED=<seed> OTTLA_SEEDS=1 ./run test <file>` runs that seed alone.
`OTTLA_SEEDS=<count>` sets how many seeds each test runs.
"""

import functools
import os
import subprocess
import zlib
from pathlib import Path

import pytest

from ottla import __version__

ROOT = Path(__file__).parents[2]
FAST_SEEDS = 2
LONG_FACTOR = 25


@functools.cache
def base_seed() -> int:
    """The first seed of this run. All worker processes get it from the environment, so they collect the same tests."""
    chosen = os.environ.get("OTTLA_SEED")
    if chosen:
        return int(chosen, 0)
    commit = commit_id()
    # Outside of a checkout (a source distribution) the seed depends on the version alone.
    return int(commit[:8], 16) if commit else zlib.crc32(__version__.encode())


def commit_id() -> str:
    """The commit that is checked out, or an empty string outside of a git repository."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answer.stdout.strip() if (ROOT / ".git").exists() else ""


def seed_count(count: int, *, fast: int | None = None, long: int | None = None) -> int:
    """How many seeds a test runs that has `count` of them in `./run test`.

    `fast` and `long` are for the other lanes (see docs/testing.md).
    """
    chosen = os.environ.get("OTTLA_SEEDS")
    if chosen:
        return int(chosen)
    match os.environ.get("OTTLA_LANE"):
        case "fast":
            return min(count, FAST_SEEDS) if fast is None else fast
        case "long":
            return count * LONG_FACTOR if long is None else long
    return count


def seeds(count: int, *, fast: int | None = None, long: int | None = None) -> range:
    """For a test that loops over its seeds; mark it with `@pytest.mark.seeded`."""
    return range(base_seed(), base_seed() + seed_count(count, fast=fast, long=long))


def each_seed(count: int, *, fast: int | None = None, long: int | None = None) -> pytest.MarkDecorator:
    """Runs a test once per seed, in its argument `seed`.

    The ids of the tests are numbered seed0, seed1 …: they are the same in every run.
    """
    return pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, id=f"seed{number}", marks=pytest.mark.seeded)
            for number, seed in enumerate(seeds(count, fast=fast, long=long))
        ],
    )
