"""Times, clocks, breakdown, explanation and drift of the variants of one model."""
