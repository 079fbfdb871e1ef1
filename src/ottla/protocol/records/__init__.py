"""Record batches: layout, compression, checks, and the compiled kernels with their pure-Python versions."""
