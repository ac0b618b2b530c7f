"""Timing: timers, cache policy, balanced orders, placements.  Measurement and nothing else: no verdicts, no storage."""
