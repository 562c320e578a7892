"""Changes of stored sessions as a whole: fork, trim, redaction, erasure, sweep."""
