"""The strategy of `fusebench ab`: head's kernels against base's, in paired rounds of one process."""
