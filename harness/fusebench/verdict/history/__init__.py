"""Change points over many runs: the series of each kernel, its shifts, and the runs that a folder holds."""
