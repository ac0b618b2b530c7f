"""Runs on several boards and hosts: shards, leases of the GPUs of one host, and records joined from both; the search for a slow commit."""
