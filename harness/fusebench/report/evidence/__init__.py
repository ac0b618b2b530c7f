"""Evidence about kernels as text: static tables, hardware counters, and what is attached to a finding."""
