"""The one place that concludes: what is compared with what, margins, what gates, and the exit code that follows."""
