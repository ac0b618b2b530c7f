"""Worker processes: their protocol, the process that runs kernels, and the pool that starts them."""
