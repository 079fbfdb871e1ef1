"""`ottla serve`: runs one broker until it receives SIGINT or SIGTERM. `brokers.py` runs several."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.cli.serve.options import HELP, Options, parse_options
from ottla.cli.serve.systemd import keep_alive, notify
from ottla.errors import KafkaError, OttlaError

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.settings.config import BrokerConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's parameter numbers for `mallopt`."""
_FREE_BYTES_KEPT = 32 << 20
_MAPPED_BLOCK_BYTES_MIN = 1 << 20
"""Larger blocks are returned to the system immediately: in the heap, one small block behind them would pin them."""
_TRIM_INTERVAL_S = 5.0
_TRIMMED_FROM_BYTES = 192 << 20
"""Below this size a process keeps its free memory."""

_COLLECTION_THRESHOLDS = (2_000, 10, 25)
"""Of the three generations: the oldest is collected after half a million new objects, about 50 MB."""


def serve(arguments: Sequence[str]) -> int:
    """Runs the command. Returns 0 after a clean stop, and 2 after printing one line if the broker cannot start."""
    try:
        options = parse_options(arguments)
        if options.help:
            print(HELP, end="")
            return 0
        if options.add_scram:
            _add_users(options)
        if options.brokers is not None:
            from ottla.cli.serve.brokers import serve_brokers

            return serve_brokers(options)
        return run_broker(options, say_ready)
    except KeyboardInterrupt:  # Ctrl-C before the signal handlers were installed
        return 130
    except OttlaError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"ottla: {error.message}{hint}", file=sys.stderr)
        return 2


def _add_users(options: Options) -> None:
    """Creates the users of --add-scram in the cluster's metadata, before any broker starts."""
    import asyncio

    from ottla.broker.authentication.scram_users import add_users_to, read_add_scram
    from ottla.broker.one_host import metadata_location
    from ottla.broker.settings.config import load_config
    from ottla.metadata.opening import access_of

    users = [user for text in options.add_scram for user in read_add_scram(text)]
    location = metadata_location(options.values, is_cluster=options.brokers is not None)
    access = access_of(load_config(options.values))
    for name in asyncio.run(add_users_to(location, users, replace=False, access=access)):
        print(f"ottla: created user {name}", file=sys.stderr)


def run_broker(
    options: Options, say_ready: Callable[[str], None], *, lifeline: int | None = None, name: str = ""
) -> int:
    """Runs one broker until it is stopped, and calls `say_ready` with its address when it serves clients.

    It also stops when the other end of `lifeline`, a pipe, is closed. `name` appears in each line of the log.
    """
    import asyncio
    import logging

    from ottla.broker.settings.config import load_config
    from ottla.broker.settings.exposure import check_exposure
    from ottla.net.event_loop import new_event_loop

    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format=f"%(asctime)s %(levelname)s {name and name + ' '}%(name)s: %(message)s",
    )
    config = load_config(options.values)
    for danger in check_exposure(config):
        logging.getLogger("ottla.broker").warning("insecure: %s", danger)
    _fill_standard_files()
    _raise_file_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(config, say_ready, 0 if options.stop_with_stdin else lifeline))
    return 0


async def _serve(config: "BrokerConfig", say_ready: Callable[[str], None], lifeline: int | None) -> None:
    import asyncio

    from ottla.broker.broker import Broker

    loop = asyncio.get_running_loop()
    stop: asyncio.Future[bool] = loop.create_future()
    """Whether to hand over to other brokers before stopping."""
    hand_over = True
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, stop)
    if lifeline is not None:
        _watch_lifeline(loop, stop, lifeline)
    keep_alive(loop)
    broker = Broker(config)
    try:
        await broker.start()
    except (OSError, KafkaError) as error:
        hint = "see the log above; check the data directory and its disk"
        raise OttlaError(f"the broker cannot start on {config.log_dirs[0]}: {error}", hint) from None
    try:
        _settle_memory()
        say_ready(broker.address)
        _keep_large_blocks()  # after "ready": it must not delay the start
        broker.watch_event_loop()
        trimming = loop.create_task(_trim_memory())
        hand_over = await stop
        trimming.cancel()
    finally:
        notify("STOPPING=1")
        await broker.stop(hand_over=hand_over)


def say_ready(address: str) -> None:
    notify(f"READY=1\nSTATUS=serves clients at {address}")
    try:
        print(f"ottla ready: {address}", flush=True)
    except OSError:  # standard output is closed; the broker serves anyway
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _on_signal(stop: "asyncio.Future[bool]") -> None:
    if stop.done():
        # Second signal: exit immediately. Acknowledged records are safe; the next start runs recovery.
        os._exit(1)
    stop.set_result(True)


def _watch_lifeline(loop: "asyncio.AbstractEventLoop", stop: "asyncio.Future[bool]", pipe: int) -> None:
    """Stops without a handover when the parent process ends: the other brokers stop too."""

    def readable() -> None:
        if not os.read(pipe, 4096):
            loop.remove_reader(pipe)
            if not stop.done():
                stop.set_result(False)

    try:
        loop.add_reader(pipe, readable)
    except OSError:
        raise OttlaError(
            "--stop-with-stdin needs a pipe as standard input", "start the broker with stdin=PIPE"
        ) from None


def _fill_standard_files() -> None:
    """Opens /dev/null for missing standard files; otherwise a socket or log file would get their descriptors."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one


def _raise_file_limit() -> None:
    """Raises the limit on open files to the maximum: every segment and connection is an open file."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems reject "unlimited" as a soft limit
            pass


def _settle_memory() -> None:
    """Keeps garbage collections short and full ones rare: each of them stops every client.

    Objects that live as long as the broker are excluded from now on. A full collection takes 0.3 ms per thousand
    objects, so a hundred milliseconds with ten thousand connections or partitions. By default one could run with
    every 70,000 new objects, which a few large requests create.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def _keep_large_blocks() -> None:
    """Makes glibc keep free memory for the next fetch instead of returning it to the system.

    A fetch allocates blocks of up to half a megabyte and frees them when they are sent. By default glibc unmaps such
    blocks, and the kernel has to zero new pages for the next fetch: two thirds of the cost of a large fetch.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BLOCK_BYTES_MIN)
    mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES_KEPT)
    # One heap for all threads, so that each reuses the memory that another has freed.
    mallopt(_M_ARENA_MAX, 1)


async def _trim_memory() -> None:
    """Returns free memory to the system while the process is large: after a burst, the heap is full of holes."""
    import asyncio
    import ctypes

    from ottla.child_process import memory_of

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        if (memory_of(os.getpid()) or 0) > _TRIMMED_FROM_BYTES:
            await asyncio.get_running_loop().run_in_executor(None, trim, 0)
