"""Live subscriptions, served by one change stream per event loop."""
