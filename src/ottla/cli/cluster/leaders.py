"""`ottla cluster elect-leaders`: gives leadership back to the preferred replicas, or elects one that is behind."""

from typing import Annotated

import typer
from rich.text import Text

from ottla.cli.output import console, count, print_json
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, find_topics, open_admin
from ottla.errors import OttlaError
from ottla.types import TopicPartition

SHOWN = 20


def elect_leaders(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC", help="Only these topics. Default: all.", show_default=False)
    ] = [],  # noqa: B006
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            metavar="",
            help="Elect an out-of-sync replica where there is no leader. LOSES RECORDS; needs topics.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move leadership back to the first replica of each partition, if it is in sync.

    The brokers do this automatically after a while (auto.leader.rebalance.enable).

    \b
    Examples:
      ottla cluster elect-leaders
      ottla cluster elect-leaders orders payments
      ottla cluster elect-leaders orders --unclean   # accepts loss of records
    """
    if unclean and not names:
        raise OttlaError("--unclean needs topics", "name the topics whose records may be lost")
    with open_admin(bootstrap) as admin:
        partitions = None
        if names:
            topics = find_topics(admin, names)
            partitions = [
                TopicPartition(topic.name, p.partition)
                for topic in topics
                for p in topic.partitions
                if not unclean or p.leader < 0
            ]
        results = {} if partitions == [] else admin.elect_leaders(partitions, unclean=unclean)
        leaders = {
            TopicPartition(topic.name, p.partition): p.leader
            for topic in admin.list_topics(include_internal=True)
            for p in topic.partitions
        }
    elected = sorted(partition for partition, error in results.items() if error is None)
    failed = {partition: error for partition, error in results.items() if error is not None}
    if as_json:
        print_json(
            {
                "elected": [{"topic": p.topic, "partition": p.partition, "leader": leaders.get(p)} for p in elected],
                "failed": [
                    {"topic": p.topic, "partition": p.partition, "error": error.code.name, "message": error.detail}
                    for p, error in sorted(failed.items())
                ],
            }
        )
    else:
        out = console()
        for partition in elected[:SHOWN]:
            out.print(f"{partition}: leader is now broker {leaders.get(partition)}")
        if len(elected) > SHOWN:
            out.print(f"and {count(len(elected) - SHOWN)} more", style="dim")
        if not elected and not failed:
            reason = "every partition has a leader" if unclean else "the preferred replicas are already the leaders"
            out.print(f"nothing to do: {reason}")
        for partition, error in sorted(failed.items())[:SHOWN]:
            out.print(Text(f"{partition}: {error.detail.rstrip('.')} [{error.code.name}]", style="yellow"))
    if failed:
        raise typer.Exit(1)
