"""Runs and baselines on disk."""
