"""Reading topics on Spark: offsets on the driver, ranges of records on the tasks."""
