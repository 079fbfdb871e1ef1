"""The exact messages between groups and their coordinator. Spec: B2, B3, B4, B5, B6.

Each file in `transcripts/` lists steps, and after `----` every request and response they caused, without fields
that have their default values. After an intended change, `OTTLA_REWRITE=1` rewrites the files; read the diff.
"""

import os
from pathlib import Path

import pytest

from tests.support.wire.transcript import replay_transcript

STORIES = sorted((Path(__file__).parent / "transcripts").glob("group_*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_exchange_matches_its_transcript(path: Path) -> None:
    written = path.read_text()
    replayed = replay_transcript(written, group_initial_rebalance_delay_ms="3000")
    if os.environ.get("OTTLA_REWRITE"):
        path.write_text(replayed)
    assert replayed == written


def test_there_are_transcripts() -> None:
    assert len(STORIES) >= 4
