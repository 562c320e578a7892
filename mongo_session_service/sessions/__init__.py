"""The store of sessions, events and scoped state."""
