"""The version, written in this one place: a release writes its tag here."""

__version__ = "0.1.0"
