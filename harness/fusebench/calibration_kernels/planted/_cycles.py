"""The clock that counts delays."""

CYCLES_PER_NS = 2
"""A clock of 2 GHz; the device's own differs by some percent, which calibration measures."""
