"""Defines the errors that a user of Polyrec can cause, each with a one-line message.

The command line prints the line and exits with 2; the server maps each class to its HTTP status in one place
(`server/errors.py`). Any other exception is a bug in Polyrec.
"""

from __future__ import annotations

from polyrec.models.text import printable

MAX_CHARACTERS = 2000


class PolyrecError(Exception):
    """Base class of every error that names a user's mistake and its remedy; its text is one bounded line."""

    def __str__(self) -> str:
        return printable(super().__str__(), MAX_CHARACTERS)


class SchemaError(PolyrecError):
    """Raised for a schema file that contradicts itself or does not fit the data."""


class DataError(PolyrecError):
    """Raised for training data that cannot be read: a missing file, a wrong column, a malformed line."""


class FeatureError(PolyrecError):
    """Raised for a malformed feature of a request; names the feature and the problem."""

    def __init__(self, feature: str, offense: str) -> None:
        super().__init__(f"feature '{feature}': {offense}")
        self.feature = feature


class BundleError(PolyrecError):
    """Raised for a bundle that is missing, corrupt or of another version."""


class RuntimeUnavailable(PolyrecError):
    """Raised for a runtime, device or execution provider that this machine does not have."""
