"""Timers: what a call took, each from a source of its own, and the choice of one for a device."""
