"""Suites: TOML files of named cases, read strictly, and random cases of an op's parameter space."""

from .files import Ops, SuiteListing, list_suites, load_suite, select_cases, suite_names

__all__ = ["Ops", "SuiteListing", "list_suites", "load_suite", "select_cases", "suite_names"]
