"""Change streams: reading, decoding and routing."""
