"""Kernel files loaded: from which folders, in this process, or by a process of their own that declares what they hold."""
