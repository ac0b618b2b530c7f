"""Messages, shared memory and tensors between the judge and processes that call kernels."""
