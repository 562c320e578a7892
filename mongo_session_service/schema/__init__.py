"""Collections, indexes and the schema version of a database."""
