"""A long run under faults, and its figures: see scripts/soak --help."""
