"""The exact messages between groups and their coordinator. Spec: B2, B3, B4, B5, B6.

Each file in `transcripts/` is a story: steps, and after `----` every request and response they led to, with fields
that have their defaults left out. After a change that is meant, `OTTLA_REWRITE=1` writes the files anew; read the diff.
"""

import os
from pathlib import Path

import pytest

from tests.support.wire.transcript import tell

STORIES = sorted((Path(__file__).parent / "transcripts").glob("group_*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_exchange_matches_its_transcript(path: Path) -> None:
    written = path.read_text()
    told = tell(written, group_initial_rebalance_delay_ms="3000")
    if os.environ.get("OTTLA_REWRITE"):
        path.write_text(told)
    assert told == written


def test_there_are_transcripts() -> None:
    assert len(STORIES) >= 4
