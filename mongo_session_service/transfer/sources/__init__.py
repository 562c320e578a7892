"""Sources: one module for each store that sessions can be read from."""
