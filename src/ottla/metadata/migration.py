"""Copies the metadata of a stopped cluster from one store to another: from a file to etcd, and back.

Everything is written in one commit, then read back and compared. The source keeps its entries and gets a mark: brokers
refuse to start with it, so that nobody uses stale metadata by mistake. Migrating back removes the mark.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.metadata import records
from ottla.metadata.store import Conflict, Create, Delete, Entry, MetadataStore, Operation, Set, StoreUnavailable


class Migrated(NamedTuple):
    keys: int
    removed: int
    """Keys of the target that the source does not have."""
    topics: int
    was_complete: bool
    """The target had everything already: an earlier attempt was interrupted after its commit."""


async def migrate(
    source: MetadataStore,
    target: MetadataStore,
    names: tuple[str, str],
    *,
    replace: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Migrated:
    """Copies everything from `source` to `target`; both are open sessions, and `names` is what users call them."""
    from_name, to_name = names
    report(f"reading {from_name}")
    entries = await source.scan("/")
    existing = await target.scan("/")
    _check_stopped(entries, from_name)
    _check_stopped(existing, to_name)
    wanted = {entry.key: _portable(entry) for entry in entries if entry.key != records.MIGRATED_TO}
    if records.CLUSTER_ID not in wanted:
        raise OttlaError(f"{from_name} has no metadata of a cluster", "Check the location given with --from.")
    moved_to = _moved_to(entries)
    if moved_to is not None and moved_to != to_name:
        raise OttlaError(
            f"the metadata of {from_name} was moved to {moved_to} earlier", f"Use --from {moved_to} instead."
        )
    found = {entry.key: entry.value for entry in existing}
    is_complete = found == wanted
    if not is_complete:
        if found and not replace and _moved_to(existing) != from_name:
            raise OttlaError(
                f"{to_name} is not empty: it has {len(found)} keys{_cluster_of(found)}",
                "Choose another target, or overwrite everything in it with --replace.",
            )
        report(f"writing {len(wanted)} keys to {to_name}")
        await _write(target, existing, wanted)
    report(f"comparing {len(wanted)} keys")
    await _verify(source, target, entries, wanted, names)
    mark = records.write_migrated_to(to_name)
    known = next((entry for entry in entries if entry.key == records.MIGRATED_TO), None)
    await source.commit([Create(records.MIGRATED_TO, mark) if known is None else Set(records.MIGRATED_TO, mark)])
    topics = sum(key.startswith(records.TOPICS + "/") and key.count("/") == 3 for key in wanted)
    return Migrated(len(wanted), len(found.keys() - wanted.keys()), topics, is_complete)


def _check_stopped(entries: Sequence[Entry], name: str) -> None:
    running = sorted(
        entry.key.rpartition("/")[2]
        for entry in entries
        if entry.session_id and entry.key.startswith(records.BROKER_IDS + "/")
    )
    if running or any(entry.session_id for entry in entries):
        several = f"brokers {', '.join(running)} are" if len(running) > 1 else "a broker is"
        raise OttlaError(
            f"{f'broker {running[0]} is' if len(running) == 1 else several} using {name}",
            "Stop all brokers of the cluster first. After a crash, wait for broker.session.timeout.ms.",
        )


def _portable(entry: Entry) -> bytes:
    """The value to write. The epoch of a broker's last registration is a revision of the store: it becomes a part of
    the value, so that the broker can prove that it was stopped cleanly (KIP-966)."""
    if entry.key.startswith(records.KNOWN_BROKERS + "/") and records.kept_epoch(entry.key, entry.value) is None:
        return records.keep_epoch(entry.key, entry.value, entry.modified)
    return entry.value


def _moved_to(entries: Sequence[Entry]) -> str | None:
    return next((records.read_migrated_to(e.key, e.value) for e in entries if e.key == records.MIGRATED_TO), None)


def _cluster_of(found: dict[str, bytes]) -> str:
    if records.CLUSTER_ID not in found:
        return ""
    return f" of cluster {records.read_cluster_id(records.CLUSTER_ID, found[records.CLUSTER_ID])}"


async def _write(target: MetadataStore, existing: Sequence[Entry], wanted: dict[str, bytes]) -> None:
    versions = {entry.key: entry.version for entry in existing}
    operations: list[Operation] = [
        Set(key, value, versions[key]) if key in versions else Create(key, value) for key, value in wanted.items()
    ]
    operations += [Delete(key, version) for key, version in versions.items() if key not in wanted]
    try:
        await target.commit(operations)
    except Conflict as error:
        raise OttlaError(
            f"the target was changed at the same time: {error}", "Stop all brokers, and try again."
        ) from None
    except StoreUnavailable as error:
        raise OttlaError(f"the metadata could not be written: {error}", "Run the command again.") from None


async def _verify(
    source: MetadataStore,
    target: MetadataStore,
    entries: Sequence[Entry],
    wanted: dict[str, bytes],
    names: tuple[str, str],
) -> None:
    written = {entry.key: entry.value for entry in await target.scan("/")}
    wrong = sorted(key for key in wanted.keys() | written.keys() if wanted.get(key) != written.get(key))
    if wrong:
        raise OttlaError(
            f"{names[1]} differs from {names[0]} in {len(wrong)} keys, the first is {wrong[0]}",
            "Nothing was changed in the source. Run the command again with --replace.",
        )
    if await source.scan("/") != list(entries):
        raise OttlaError(
            f"{names[0]} was changed during the migration", "Stop all brokers, and run it again with --replace."
        )
