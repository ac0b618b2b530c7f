"""Confines processes that run a candidate, watches what they take, and ends all of them."""
