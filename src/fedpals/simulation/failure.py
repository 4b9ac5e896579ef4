"""What a run that fails says: one sentence, whatever went wrong, in a form that travels between processes."""

from __future__ import annotations

import traceback
from pathlib import Path

from fedpals.engine.server import DivergedError
from fedpals.errors import FedpalsError, InputError
from fedpals.simulation.run import Run


def failure(error: Exception, run: Run) -> FedpalsError:
    """Return why a run failed: an error of this package as it is, any other with what raised it and where."""
    if isinstance(error, InputError | DivergedError):
        return error
    if isinstance(error, FedpalsError):
        return FedpalsError(str(error))
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return FedpalsError(f"{where}{error.strerror}; fix that, and the same command continues the run")
    if isinstance(error, MemoryError):
        return FedpalsError(
            f"the memory does not suffice ({error or 'no more is said'}); give fewer clients or samples"
        )
    frames = traceback.extract_tb(error.__traceback__)
    called = any(frame.name == "_call_impl" for frame in frames)  # by which torch calls a network
    what = f"model {run.network.model}" if run.network.is_own and called else "the run"
    message = " ".join(str(error).split())
    at = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "unknown place"
    remedy = "fix it" if run.network.is_own and called else "please report it if this is not your own code"
    return FedpalsError(f"{what} raised {type(error).__name__}: {message} ({at}); {remedy}")
