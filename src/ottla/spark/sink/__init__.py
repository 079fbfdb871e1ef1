"""Writing topics on Spark, exactly once: decisions on the driver, transactions on the tasks."""
