"""The strategy of `fusebench ncu`: hardware counters of kernels."""
