"""Shared by the commands: options, selection, progress, output and the exit status."""
