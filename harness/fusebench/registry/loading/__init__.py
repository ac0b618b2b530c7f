"""Kernel files loaded by a process of their own, which declares what they hold."""
