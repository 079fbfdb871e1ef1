"""`python -m ottla` is the same as the `ottla` command."""

import sys

from ottla.cli.main import main

sys.exit(main())
