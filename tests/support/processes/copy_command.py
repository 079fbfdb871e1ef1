"""`ottla copy` as an example that can be killed (crashing.py), with transactions of a few records each."""

from ottla.cli.copy import copier
from ottla.cli.main import main


def run(*words: str) -> None:
    copier.TRANSACTION_BYTES, copier.POLL_RECORDS_MAX = 1, 6
    status = main(["copy", *words])
    if status:
        raise SystemExit(status)
