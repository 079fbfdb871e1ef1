"""The workloads: threads that use clients as applications do, and record what they did and saw."""
