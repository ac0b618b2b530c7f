"""A run against a stored baseline: the judgement of every kernel and case, and of the run as a whole."""
