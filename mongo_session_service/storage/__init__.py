"""Access to MongoDB through PyMongo, Motor or mongomock-motor."""
