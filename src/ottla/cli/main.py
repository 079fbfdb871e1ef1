"""Entry point of `ottla`: runs `serve` directly and passes every other command to `ottla.cli.app`.

`serve` must start fast, so it is recognised here, before the libraries of the other commands are imported.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] == "serve":
        from ottla.cli.serve.command import serve

        return serve(words[1:])
    if words == ["--version"]:
        import ottla

        print(f"ottla {ottla.__version__}")
        return 0
    from ottla.cli.app import run

    return run(words)
