"""Keys, records, state scopes and argument checks, without I/O."""
