"""What can go wrong, said so that the reader can mend it.

Every error a user can cause names the file or argument, the offending value and the remedy.
The command line prints the message of a `FedpalsError` and exits with code 2.
"""

from __future__ import annotations


class FedpalsError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(FedpalsError, ValueError):
    """An argument or a file does not hold what it must."""


class CertificateError(FedpalsError, ArithmeticError):
    """A computed answer did not pass its own proof, so it is not returned."""


class MissingExtraError(FedpalsError, ImportError):
    """An optional dependency is needed for this and is not installed."""

    def __init__(self, needed_for: str, extra: str) -> None:
        super().__init__(f"{needed_for} needs the optional packages: pip install 'fedpals[{extra}]'")
