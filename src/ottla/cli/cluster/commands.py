"""`ottla cluster` and its subcommands."""

import typer

from ottla.cli.cluster.leaders import elect_leaders
from ottla.cli.cluster.migrating import migrate_metadata
from ottla.cli.cluster.moving import drain, reassign
from ottla.cli.cluster.overview import cluster
from ottla.cli.cluster.waiting import wait_in_sync
from ottla.cli.cluster.watch import watch

app = typer.Typer(invoke_without_command=True)
app.callback()(cluster)
app.command()(watch)
app.command("wait-in-sync")(wait_in_sync)
app.command("elect-leaders")(elect_leaders)
app.command()(reassign)
app.command()(drain)
app.command("migrate-metadata")(migrate_metadata)
