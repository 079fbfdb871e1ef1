"""The segment files of a partition: data, indexes, rolling, and search by offset or timestamp."""
