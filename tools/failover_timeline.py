"""Kills one of three brokers under load and draws the result, docs/failover.svg.

    .venv/bin/python tools/failover_timeline.py                      # run (about 10 seconds) and draw
    .venv/bin/python tools/failover_timeline.py --data failover.json # keep the measurements; a second run only draws

A producer sends to six partitions with three replicas each, acks=all. The broker that leads the first one is
killed with SIGKILL, and started again two seconds later. The figure shows when records were acknowledged, and who led.
"""

import argparse
import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 6
EVERY_S = 0.005
"""Time between two records of a partition."""
KILL_S, RESTART_S, END_S = 2.0, 4.0, 12.0
SETTLED_S = 1.0
"""The run continues for this long after leadership has returned."""
POLL_S = 0.02

WIDTH, LEFT, RIGHT = 860, 120, 20
COLOURS = ("#2f6fb5", "#c2702d", "#4c8f4c")
GREY, DARK, RED = "#8a8f98", "#30363d", "#c0392b"


# Measuring


async def measure() -> dict[str, Any]:
    """One run. Times are seconds since the start of the load."""
    from ottla import AsyncAdmin, Broker

    with Broker.embedded(brokers=3) as cluster:
        async with AsyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("orders", partitions=PARTITIONS)
            return await _load(cluster, admin)


async def _load(cluster: Any, admin: Any) -> dict[str, Any]:
    from ottla import AsyncProducer

    (topic,) = await admin.describe_topics(["orders"])
    victim = topic.partitions[0].leader
    acknowledged: list[list[float]] = [[] for _ in range(PARTITIONS)]
    failures: list[str] = []
    states: list[tuple[float, int, list[int]]] = []
    """(time, leader, in-sync replicas) of partition 0, at each change."""
    events: dict[str, float] = {}
    is_over = asyncio.Event()
    async with AsyncProducer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        for partition in range(PARTITIONS):
            await (await producer.send("orders", b"first", partition=partition))
        started = time.monotonic()

        def now() -> float:
            return time.monotonic() - started

        async def send(partition: int) -> None:
            due = now()
            while not is_over.is_set():
                delivery = await producer.send("orders", b"." * 100, partition=partition)
                delivery.add_done_callback(lambda done: note(partition, done))
                due += EVERY_S
                await asyncio.sleep(max(0.0, due - now()))

        def note(partition: int, done: Any) -> None:
            if done.exception() is None:
                acknowledged[partition].append(round(now(), 4))
            else:
                failures.append(str(done.exception()))

        async def watch() -> None:
            while not is_over.is_set():
                (found,) = await admin.describe_topics(["orders"])
                first = found.partitions[0]
                state = (first.leader, sorted(first.in_sync_replicas))
                if not states or states[-1][1:] != state:
                    states.append((round(now(), 3), *state))
                await asyncio.sleep(POLL_S)

        async def disturb() -> None:
            await asyncio.sleep(KILL_S)
            events["killed"] = now()
            cluster.kill(victim)
            await asyncio.sleep(RESTART_S - now())
            events["started"] = now()
            await asyncio.to_thread(cluster.restart, victim)
            events["back"] = now()
            while now() < END_S and states[-1][1] != victim:  # noqa: ASYNC110 (a poll of the cluster)
                await asyncio.sleep(POLL_S)
            await asyncio.sleep(SETTLED_S)
            is_over.set()

        await asyncio.gather(disturb(), watch(), *(send(partition) for partition in range(PARTITIONS)))
        await producer.flush()
        end = now()
    led = [p.partition for p in topic.partitions if p.leader == victim]
    return {
        "victim": victim,
        "led": led,
        "end": round(end, 3),
        "events": {name: round(at, 3) for name, at in events.items()},
        "states": states,
        "acknowledged": acknowledged,
        "failures": failures,
    }


def longest_gap(times: list[float], start: float, end: float) -> tuple[float, float]:
    """The longest time without an acknowledgement in a period, as (start, end).

    >>> longest_gap([0.0, 1.0, 4.0, 5.0], 0.5, 5.0)
    (1.0, 4.0)
    """
    inside = [at for at in times if start <= at <= end]
    pairs = itertools.pairwise(inside)
    return max(pairs, key=lambda pair: pair[1] - pair[0], default=(start, end))


# Drawing


class Panel:
    """A part of the figure with its own scale of time."""

    def __init__(self, start: float, end: float, top: int) -> None:
        self.start, self.end, self.top = start, end, top
        self.parts: list[str] = []

    def x(self, at: float) -> float:
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def text(self, x: float, y: float, words: str, anchor: str = "start", colour: str = DARK, size: int = 12) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{self.top + y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
            f"{words}</text>"
        )

    def rectangle(self, start: float, end: float, y: float, height: float, colour: str, opacity: float = 1.0) -> None:
        left, right = self.x(start), self.x(end)
        if right > left:
            self.parts.append(
                f'<rect x="{left:.1f}" y="{self.top + y:.1f}" width="{right - left:.1f}" height="{height:.1f}" '
                f'fill="{colour}" fill-opacity="{opacity}"/>'
            )

    def line(self, at: float, y: float, height: float, colour: str) -> None:
        if self.start <= at <= self.end:
            x = self.x(at)
            self.parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top + y:.1f}" y2="{self.top + y + height:.1f}" '
                f'stroke="{colour}" stroke-width="1.5" stroke-dasharray="4 3"/>'
            )

    def bars(self, name: str, times: list[float], bucket: float, y: float, height: float, colour: str) -> None:
        """Acknowledgements per bucket of time, as bars."""
        counts: dict[int, int] = {}
        for at in times:
            if self.start <= at < self.end:
                counts[int((at - self.start) / bucket)] = counts.get(int((at - self.start) / bucket), 0) + 1
        usual = sorted(counts.values())[len(counts) // 2] if counts else 1
        for number, count in counts.items():
            tall = min(1.0, count / (1.5 * usual)) * height
            at = self.start + number * bucket
            self.rectangle(at, at + bucket * 0.9, y + height - tall, tall, colour)
        self.text(LEFT - 10, y + height / 2 + 4, name, "end")

    def axis(self, step: float, y: float, zero: float) -> None:
        self.parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.top + y}" y2="{self.top + y}" stroke="{GREY}"/>'
        )
        first = -int((zero - self.start) / step)
        for number in range(first, int((self.end - zero) / step) + 1):
            at = zero + number * step
            self.text(self.x(at), y + 15, f"{number * step:g} s", "middle", GREY, 11)


def draw(run: dict[str, Any]) -> str:
    """The figure as SVG."""
    killed, back = run["events"]["killed"], run["events"]["back"]
    hit = sorted(at for partition in run["led"] for at in run["acknowledged"][partition])
    others = sorted(at for number, times in enumerate(run["acknowledged"]) if number not in run["led"] for at in times)
    gaps = [longest_gap(run["acknowledged"][partition], killed - 0.2, killed + 3) for partition in run["led"]]
    worst = max(gaps, key=lambda gap: gap[1] - gap[0])
    gap_ms = round((worst[1] - worst[0]) * 1000)
    other_gap_ms = round(
        1000
        * max(
            stop - start
            for number, times in enumerate(run["acknowledged"])
            if number not in run["led"]
            for start, stop in [longest_gap(times, killed - 0.2, killed + 3)]
        )
    )
    near = Panel(killed - 0.2, killed + 0.8, 40)
    near.rectangle(*worst, 0, 118, RED, 0.12)
    near.bars("its partitions", hit, 0.01, 4, 50, COLOURS[run["victim"]])
    near.bars("the others", others, 0.01, 64, 50, GREY)
    near.line(killed, -6, 124, RED)
    near.text(near.x(killed) - 6, -10, f"kill -9 of broker {run['victim']}", "end", RED)
    note = f"longest time without an acknowledgement: {gap_ms} ms (partitions of the other brokers: {other_gap_ms} ms)"
    near.text(WIDTH - RIGHT, 152, note, "end")
    near.axis(0.1, 118, killed)

    whole = Panel(killed - 0.5, run["end"], 240)
    whole.bars("acknowledged", sorted([*hit, *others]), 0.05, 0, 60, GREY)
    states = [*run["states"], [run["end"], None, []]]
    for (at, leader, in_sync), (until, *_) in itertools.pairwise(states):
        if leader >= 0:
            whole.rectangle(at, until, 74, 16, COLOURS[leader])
        for broker in in_sync:
            whole.rectangle(at, until, 98 + 9 * broker, 7, COLOURS[broker])
    whole.text(LEFT - 10, 87, "leader", "end")
    whole.text(LEFT - 10, 115, "in sync", "end")
    for name, at, colour in (("killed", killed, RED), ("serves again", back, DARK)):
        whole.line(at, -4, 132, colour)
        whole.text(whole.x(at) + 4, -8, name, "start", colour)
    for at, what in _moments(run):
        whole.line(at, 70, 58, DARK)
        whole.text(whole.x(at), 160, what, "middle", DARK, 11)
    whole.axis(1.0, 128, killed)
    legend = "".join(
        f'<rect x="{LEFT + 90 * broker}" y="424" width="12" height="12" fill="{colour}"/>'
        f'<text x="{LEFT + 90 * broker + 18}" y="434" fill="{DARK}" font-size="12">broker {broker}</text>'
        for broker, colour in enumerate(COLOURS)
    )
    body = "\n".join([*near.parts, *whole.parts, legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 450" font-family="sans-serif" role="img" '
        f'aria-label="Acknowledgements before and after a broker is killed; the longest gap is {gap_ms} ms">\n'
        f'<rect width="{WIDTH}" height="450" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _moments(run: dict[str, Any]) -> list[tuple[float, str]]:
    """When the killed broker was in sync again, and when it led again."""
    victim, back = run["victim"], run["events"]["started"]
    moments = []
    in_sync = next((at for at, _, members in run["states"] if at > back and victim in members), None)
    leads = next((at for at, leader, _ in run["states"] if at > back and leader == victim), None)
    if in_sync is not None:
        moments.append((in_sync, "in sync again"))
    if leads is not None:
        moments.append((leads, "leads again"))
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="file with the measurements; written if it does not exist")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "failover.svg")
    options = parser.parse_args()
    if options.data is not None and options.data.exists():
        run = json.loads(options.data.read_text())
    else:
        run = asyncio.run(measure())
        if options.data is not None:
            options.data.write_text(json.dumps(run))
    options.output.write_text(draw(run))
    print(f"wrote {options.output}; {len(run['failures'])} failed records; states: {run['states']}")


if __name__ == "__main__":
    main()
