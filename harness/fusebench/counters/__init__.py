"""Hardware counters: Nsight Compute driven over kernels and cases, and what its figures say."""
