"""Retention: how many of the oldest segments to delete, by age, size and log start offset. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from ottla.log.config import TopicConfig


class SegmentFacts(NamedTuple):
    """The properties of a segment that retention uses."""

    base_offset: int
    next_offset: int
    """The base offset of the next segment; for the active one, the log end offset."""
    size_bytes: int
    latest_ms: int
    """The newest record's timestamp; if no record has one, the time of creation."""


def segments_to_delete(
    segments: Sequence[SegmentFacts], config: TopicConfig, *, now: int, high_watermark: int, log_start_offset: int
) -> int:
    """How many segments to delete, counted from the oldest. The last element of `segments` is the active one.

    If all of them are to be deleted, the active one must be rolled first. Nothing at or above the high watermark is
    deleted.
    """
    allowed = 0
    while allowed < len(segments) and segments[allowed].next_offset <= high_watermark:
        allowed += 1
    if allowed == len(segments) and segments[-1].size_bytes == 0:
        allowed -= 1
    count = _below_start(segments, log_start_offset)
    if config.deletes:
        count = max(count, _too_old(segments, config.retention_ms, now), _too_many(segments, config.retention_bytes))
    return min(count, allowed)


def _too_old(segments: Sequence[SegmentFacts], retention_ms: int, now: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    while count < len(segments) and now - segments[count].latest_ms > retention_ms:
        count += 1
    return count


def _too_many(segments: Sequence[SegmentFacts], retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and excess > 0 and segments[count].size_bytes <= excess:
        excess -= segments[count].size_bytes
        count += 1
    return count


def _below_start(segments: Sequence[SegmentFacts], log_start_offset: int) -> int:
    count = 0
    while count + 1 < len(segments) and segments[count].next_offset <= log_start_offset:
        count += 1
    return count
