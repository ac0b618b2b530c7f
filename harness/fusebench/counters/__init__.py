"""Hardware counters: captures by Nsight Compute over kernels and cases, and the meaning of their figures."""
