"""Two small files that prove, at the next start, that a broker has lost nothing (KIP-966).

The clean-shutdown file is written when everything is synced. The running file is written at the start: if it names the
current run of the machine, the process was only killed, and the page cache still has what it wrote. After a reboot it
proves nothing.
"""

import json
import logging

from ottla.log.disk import Disk

log = logging.getLogger("ottla.log")

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RUNNING_FILE = ".ottla_running"


def mark_clean(disk: Disk, directory: str, broker_epoch: int) -> None:
    mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    disk.write_file(f"{directory}/{CLEAN_SHUTDOWN_FILE}", mark.encode())
    disk.sync_directory(directory)


def mark_running(disk: Disk, directory: str, broker_epoch: int, boot_id: str) -> None:
    # Not synced: it matters only as long as the machine runs.
    mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch, "bootId": boot_id}, separators=(",", ":"))
    disk.overwrite_file(f"{directory}/{RUNNING_FILE}", mark.encode())


def unmark_running(disk: Disk, directory: str) -> None:
    """Something that was written may be lost, for example because a sync failed."""
    try:
        disk.remove(f"{directory}/{RUNNING_FILE}")
    except FileNotFoundError:
        pass


def previous_broker_epoch(disk: Disk, directory: str, boot_id: str) -> int | None:
    """The epoch of the last broker that used the directory, if nothing that it wrote can be lost; otherwise None."""
    clean = _read(disk, f"{directory}/{CLEAN_SHUTDOWN_FILE}")
    if clean is not None:
        return _epoch(clean)
    running = _read(disk, f"{directory}/{RUNNING_FILE}")
    if running is not None and boot_id and running.get("bootId") == boot_id:
        return _epoch(running)
    return None


def _epoch(mark: dict[str, object]) -> int:
    epoch = mark.get("brokerEpoch")
    return epoch if isinstance(epoch, int) else -1


def _read(disk: Disk, path: str) -> dict[str, object] | None:
    try:
        mark = json.loads(disk.read_file(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s: not readable: %s", path, error)
        mark = None
    return mark if isinstance(mark, dict) else {}
