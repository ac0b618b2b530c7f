"""Runs on several boards and hosts, as leases or shards that one record joins; and the search for a slow commit."""
