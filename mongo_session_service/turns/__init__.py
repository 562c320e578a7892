"""Turns: one caller at a time works on a session."""
