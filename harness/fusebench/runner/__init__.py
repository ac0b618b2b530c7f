"""Turns kernels and cases into a run: worker processes, the accuracy gate, timing, budgets, progress and the record."""
