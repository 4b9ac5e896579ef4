"""Metrics to TensorBoard or MLflow as well: one small callback each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpals.errors import InputError, MissingExtraError
from fedpals.shift.evaluation import Correction
from fedpals.simulation.record import RoundLine
from fedpals.simulation.run import Run

Log = Callable[[RoundLine], None]


def scalars(line: RoundLine) -> dict[str, float]:
    """Return the numbers of a line by name, such as loss or raw/validation/accuracy."""
    numbers = {} if line.loss is None else {"loss": line.loss}
    for correction, scores in ((Correction.RAW, line.raw), (Correction.PRIOR, line.prior)):
        for part, metrics in (("validation", scores.validation), ("test", scores.test)):
            if metrics is not None:
                numbers |= {
                    f"{correction}/{part}/accuracy": metrics.accuracy,
                    f"{correction}/{part}/macro_f1": metrics.macro_f1,
                }
    return numbers


@contextmanager
def tensorboard(run: Run, folder: Path) -> Iterator[Log]:
    """Write TensorBoard event files into the run's folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("the tracker tensorboard", "tensorboard") from None
    with SummaryWriter(str(folder / run.folder / "tensorboard")) as writer:

        def log(line: RoundLine) -> None:
            for name, value in scalars(line).items():
                writer.add_scalar(name, value, line.round)

        yield log


@contextmanager
def mlflow(run: Run, folder: Path) -> Iterator[Log]:
    """Log to where MLflow's own settings say, such as MLFLOW_TRACKING_URI."""
    try:
        import mlflow as library
    except ImportError:
        raise MissingExtraError("the tracker mlflow", "mlflow") from None
    del folder
    library.set_experiment(run.data.name)
    with library.start_run(run_name=f"{run.method.full_name}-{run.seed}"):
        library.log_params(run.keys())

        def log(line: RoundLine) -> None:
            library.log_metrics({k.replace("/", "."): v for k, v in scalars(line).items()}, step=line.round)

        yield log


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow}


@contextmanager
def tracking(names: tuple[str, ...], run: Run, folder: Path) -> Iterator[list[Log]]:
    """Open the named trackers for one run."""
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"tracker {name!r} is not known; known are {', '.join(TRACKERS)}")
    with ExitStack() as stack:
        yield [stack.enter_context(TRACKERS[name](run, folder)) for name in names]
