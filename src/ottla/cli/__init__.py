"""The `ottla` command line: one file per command, or one package where a command needs several files."""
