"""For the PYTHONPATH of Spark's Python processes: a source's process connects to Spark before it imports PySpark."""
