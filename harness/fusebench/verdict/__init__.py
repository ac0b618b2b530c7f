"""The one place that concludes: the choice of comparisons, margins, gating, and the exit code."""
