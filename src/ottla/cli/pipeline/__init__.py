"""`ottla pipeline`: run, validate and inspect pipelines on Spark."""
