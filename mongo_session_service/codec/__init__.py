"""Translation between ADK objects and BSON documents, without I/O."""
