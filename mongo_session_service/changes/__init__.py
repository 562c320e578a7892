"""Committed changes, pushed to whoever wants to know."""
