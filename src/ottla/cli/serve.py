"""`ottla serve`: runs one broker until it receives SIGINT or SIGTERM."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.checks import port_from_text
from ottla.errors import KafkaError, OttlaError

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.settings.config import BrokerConfig

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "ottla-data"
LOG_LEVELS = ("debug", "info", "warning", "error")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's parameter numbers for `mallopt`."""
_FREE_BYTES_KEPT = 32 << 20
_MAPPED_BLOCK_BYTES_MIN = 1 << 20
"""Larger blocks go back to the system at once: in the heap, one small block behind them would keep them there."""
_TRIM_INTERVAL_S = 5.0
_TRIMMED_FROM_BYTES = 192 << 20
"""Below this size a process keeps its free memory."""

_COLLECTION_THRESHOLDS = (2_000, 10, 25)
"""Of the three generations: the oldest is collected after half a million new objects, about 50 MB."""

HELP = f"""\
Usage: ottla serve [OPTION ...]

Run a Kafka-compatible broker. Prints "ottla ready: HOST:PORT" when it accepts connections.
Ctrl-C or SIGTERM stops it cleanly; a second one stops it at once.

Options:
  --listen HOST:PORT    address to listen on; port 0 picks a free port, :PORT listens on all interfaces
                        (default: {DEFAULT_LISTEN})
  --data DIR            data directory for records and metadata (default: ./{DEFAULT_DATA})
  --config FILE         properties file with one name=value per line, like Kafka's server.properties
  --set NAME=VALUE      set a broker setting; overrides the file; repeatable
  --metrics HOST:PORT   serve Prometheus metrics on this address (needs: pip install 'ottla[metrics]')
  --log-level LEVEL     {", ".join(LOG_LEVELS)} (default: info); logs go to standard error
  --stop-with-stdin     also stop when standard input is closed, for programs that start a broker
  --help, -h            show this message and exit

Settings have Kafka's names. Options override --set, and --set overrides the file.

Examples:
  ottla serve
  ottla serve --listen 127.0.0.1:0 --data /tmp/orders
  ottla serve --set num.partitions=6 --set log.retention.hours=24
  ottla serve --config server.properties --log-level warning
"""


class Options(NamedTuple):
    """The parsed command line."""

    values: dict[str, str]
    """Settings by name, as unparsed text."""
    log_level: str = "info"
    stop_with_stdin: bool = False
    help: bool = False


def serve(arguments: Sequence[str]) -> int:
    """Runs the command. Returns 0 after a clean stop, and 2 after printing one line if the broker cannot start."""
    try:
        options = parse_options(arguments)
        if options.help:
            print(HELP, end="")
            return 0
        return _run(options)
    except KeyboardInterrupt:  # Ctrl-C before the signal handlers were installed
        return 130
    except OttlaError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"ottla: {error.message}{hint}", file=sys.stderr)
        return 2


def parse_options(arguments: Sequence[str]) -> Options:
    """Parses the command line. `--name value` and `--name=value` are equivalent."""
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    flags = set()
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("--help", "-h"):
            return Options({}, help=True)
        name, has_value, value = word.partition("=")
        if name == "--stop-with-stdin" and not has_value:
            flags.add(name)
            continue
        if name not in ("--listen", "--data", "--config", "--set", "--metrics", "--log-level"):
            raise OttlaError(f"unknown option {word}", "see: ottla serve --help")
        if not has_value:
            if not words:
                raise OttlaError(f"{name} needs a value", "see: ottla serve --help")
            value = words.pop(0)
        if name == "--set":
            setting, equals, text = value.partition("=")
            if not equals or not setting.strip():
                raise OttlaError(f"--set {value} has no '='", "write --set NAME=VALUE")
            settings[setting.strip()] = text.strip()
        elif name in options:
            raise OttlaError(f"option {name} is repeated", "pass it once")
        else:
            options[name] = value
    values = _read_config(options["--config"]) if "--config" in options else {}
    values |= settings
    if "--listen" in options:
        values["listeners"] = _listener(options["--listen"])
    if "--data" in options:
        values["log.dirs"] = options["--data"]
        values.pop("log.dir", None)
    if "--metrics" in options:
        values["ottla.metrics.listen"] = options["--metrics"]
    values.setdefault("listeners", _listener(DEFAULT_LISTEN))
    if "log.dir" not in values:
        values.setdefault("log.dirs", DEFAULT_DATA)
    log_level = options.get("--log-level", "info").lower()
    if log_level not in LOG_LEVELS:
        raise OttlaError(f"unknown log level {log_level}", f"use one of {', '.join(LOG_LEVELS)}")
    return Options(values, log_level, "--stop-with-stdin" in flags)


def _listener(address: str) -> str:
    """Converts HOST:PORT to Kafka's listener format."""
    if "://" in address:
        return address
    host, colon, port = address.rpartition(":")
    if not colon or port_from_text(port) is None or (":" in host and not host.startswith("[")):
        raise OttlaError(
            f"cannot listen on {address!r}",
            "write --listen HOST:PORT with a port from 0 to 65535, for example 127.0.0.1:9092; IPv6 as [::1]:9092",
        )
    return f"PLAINTEXT://{host}:{port}"


def _read_config(path: str) -> dict[str, str]:
    from ottla.config import read_properties

    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except OSError as error:
        raise OttlaError(f"cannot read {path}: {error.strerror}", "pass a file with one name=value per line") from None
    except UnicodeDecodeError:
        raise OttlaError(f"cannot read {path}: it is not text", "pass a file with one name=value per line") from None
    except OttlaError as error:
        raise OttlaError(f"{path}: {error.message}", error.hint) from None


def _run(options: Options) -> int:
    import asyncio
    import logging

    from ottla.broker.settings.config import load_config

    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    config = load_config(options.values)
    _fill_standard_files()
    _raise_file_limit()
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:  # works without it, only slower
        pass
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(config, options))
    return 0


async def _serve(config: "BrokerConfig", options: Options) -> None:
    import asyncio

    from ottla.broker.broker import Broker

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, stop)
    if options.stop_with_stdin:
        _watch_stdin(loop, stop)
    broker = Broker(config)
    try:
        await broker.start()
    except (OSError, KafkaError) as error:
        hint = "see the log above; check the data directory and its disk"
        raise OttlaError(f"the broker cannot start on {config.log_dirs[0]}: {error}", hint) from None
    try:
        _settle_memory()
        _say_ready(broker.address)
        _keep_large_blocks()  # after "ready": it must not delay the start
        broker.watch_event_loop()
        trimming = loop.create_task(_trim_memory())
        await stop.wait()
        trimming.cancel()
    finally:
        await broker.stop()


def _say_ready(address: str) -> None:
    try:
        print(f"ottla ready: {address}", flush=True)
    except OSError:  # standard output is closed; the broker serves anyway
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _on_signal(stop: "asyncio.Event") -> None:
    if stop.is_set():
        # Second signal: exit at once. Acknowledged records are safe; the next start runs recovery.
        os._exit(1)
    stop.set()


def _watch_stdin(loop: "asyncio.AbstractEventLoop", stop: "asyncio.Event") -> None:
    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    try:
        loop.add_reader(0, readable)
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
        except (OSError, ValueError):  # some systems refuse "unlimited" as a soft limit
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
    # One heap for all threads: what one has freed, the others use.
    mallopt(_M_ARENA_MAX, 1)


async def _trim_memory() -> None:
    """Returns free memory to the system while the process is large: after a burst, the heap is full of holes."""
    import asyncio
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        try:
            with open("/proc/self/statm", "rb") as file:  # noqa: ASYNC230 (not a file on a disk)
                resident_bytes = int(file.read().split()[1]) * page_bytes
        except OSError:  # no /proc, or no free descriptor
            continue
        if resident_bytes > _TRIMMED_FROM_BYTES:
            await asyncio.get_running_loop().run_in_executor(None, trim, 0)
