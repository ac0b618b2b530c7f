"""Runs in processes that a candidate shares: it loads one kernel, makes its calls and compiles it, and holds no expected value."""
