"""Durable readers of the change feed: leases, checkpoints, dead letters."""
