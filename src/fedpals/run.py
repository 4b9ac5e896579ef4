"""A run: one federation × model × method × settings × seed, as a configuration that says everything."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, create_model, model_validator

from fedpals.data import Federation, Task
from fedpals.errors import InputError
from fedpals.methods import METHODS, Method, method, option_keys
from fedpals.methods.option import as_text

Model = TypeVar("Model", bound=BaseModel)

_DEFAULT_MODELS = {"synthetic": "logistic", "pacs": "head", "iwildcam": "head"}
"""Model where none is named; other data sets get the paper's small CNN, or its head where they have a backbone."""
_FEATURES = {"pacs": 128, "iwildcam": 224}
"""Data sets whose images are read through a frozen backbone unless told otherwise, and at which size."""
_OPTIONS: dict[str, Any] = option_keys()
"""The options of all methods, which are keys of a run; None stands for the method's own default."""


def _with_options(model: type[Model]) -> type[Model]:
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **_OPTIONS)


@_with_options
class _MethodTask(Task):
    """Data and method: apart from the rest so that the options' keys follow ``method``."""

    method: str = Field(default="fedpals", description=f"{', '.join(METHODS)}, or joined: fedprox+fedpals.")


class Run(_MethodTask):
    """All that determines a run's result; equal configurations give equal bits.

    >>> Run(task="fashion-mnist", method="fedpals", ess=0.5, seed=3).folder.parent.as_posix()
    'fashion-mnist-C3/fedpals-ess0.5'
    """

    if TYPE_CHECKING:  # the options of methods are keys as well, of which only their declarations know

        def __init__(self, **keys: Any) -> None: ...

    model: str | None = None
    """logistic, cnn, head, a backbone to be fine-tuned, or your own package.module:function."""
    backbone: Literal["mobilenet_v2", "mobilenet_v2_blocks", "resnet50", "resnet50_blocks"] | None = None
    """Frozen network whose features, of its last layer or of all blocks, take the place of the images."""
    image_size: int | None = Field(default=None, ge=8)
    """Pixels a side of images that are read from files, or that a backbone sees."""
    rounds: int = Field(default=60, ge=1)
    epochs: int = Field(default=1, ge=1)
    """Local epochs E."""
    steps: int | None = Field(default=None, ge=1)
    """Local steps instead of epochs."""
    batch_size: int = Field(default=32, ge=1)
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    augment: Literal["shift", "flip"] | None = None
    """Change images at random while training: shift moves them by up to 2 pixels, flip also mirrors them."""
    server_momentum: float | None = Field(default=None, gt=0, lt=1)
    """Share of its last move that the global model repeats in every round."""
    averaging: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the running mean of the global models, which is evaluated and kept in place of the last of them."""
    participation: float = Field(default=1.0, gt=0, le=1)
    """Fraction of clients that take part in each round."""
    target_noise: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """δ of the noise on what the server takes for T; it knows T exactly unless given."""
    target_estimate: Literal["bbse", "em"] | None = None
    """Estimate T after every round from unlabelled inputs of the target, as if it were unknown; needs held_out."""
    count_epsilon: float | None = Field(default=None, gt=0, le=100)
    """ε of the noise that clients add to their label counts; the server knows the counts exactly unless given."""
    held_out: float | None = Field(default=None, gt=0, lt=1)
    """Share of its samples that every client keeps out of training, to estimate the target risk with."""
    patience: int | None = Field(default=None, ge=1)
    """Stop when validation, or the estimate of clients that hold samples out, has not improved for so many rounds."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        task = str(given.get("task", cls.model_fields["task"].default))
        if task in _FEATURES and given.get("model") in {None, "head"}:
            given = {"backbone": "mobilenet_v2", "image_size": _FEATURES[task], **given}
        return {"model": _DEFAULT_MODELS.get(task, "head" if "backbone" in given else "cnn"), **given}

    @model_validator(mode="after")
    def _target_is_told_one_way(self) -> Self:
        if self.target_estimate is not None and self.held_out is None:
            raise InputError(
                f"target_estimate is {self.target_estimate!r}, which takes what clients say of samples that they hold "
                "out; give held_out, as 0.1"
            )
        if self.target_estimate is not None and self.target_noise is not None:
            raise InputError(
                "target_estimate is for a T that is unknown, and target_noise for one that is not: give one"
            )
        return self

    @model_validator(mode="after")
    def _settle_options(self) -> Self:
        """Write what the method settles itself into the configuration, so that its record says everything."""
        self.__dict__.update(self.build_method().settled)  # frozen from here on
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method that are given; the others have the method's own defaults."""
        values = {key: getattr(self, key) for key in _OPTIONS}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def named_options(self) -> dict[str, Any]:
        """Those given options that are part of the method's name: the ones declared with a symbol."""
        return {key: value for key, value in self.options.items() if Run.model_fields[key].title}

    def build_method(self) -> Method:
        """Return the method with its options."""
        return method(self.method, self.options)

    def build_federation(self, folder: Path | None = None) -> Federation:
        """Return the federation that the run trains on; ``folder`` is where official files are looked for first."""
        federation = self.data_task.federation(self.seed, oracle=self.build_method().oracle, folder=folder)
        return federation if self.held_out is None else federation.holding_out(self.held_out, self.seed)

    @property
    def data_task(self) -> Task:
        """The data part of the configuration alone."""
        keys = Task.model_fields.keys()
        return Task(**{key: value for key, value in self.model_dump(exclude_none=True).items() if key in keys})

    @property
    def task_name(self) -> str:
        """Short name of the data and their partition, for folders and tables."""
        name = Path(self.task).stem
        for key, letter in (("labels_per_client", "C"), ("beta", "beta"), ("delta", "delta")):
            if (value := getattr(self, key)) is not None:
                name += f"-{letter}{value:g}"
        if self.task == "pacs" and self.partition == "by_domain":
            name += "-domains"
        return re.sub(r"[^A-Za-z0-9._+-]", "_", name)

    @property
    def method_name(self) -> str:
        """Name of the method with what sets it apart, for folders and tables."""
        return self.method + "".join(f"-{key}{as_text(value)}" for key, value in self.named_options.items())

    @property
    def title(self) -> str:
        """The method as tables and legends call it."""
        shown = (f"({Run.model_fields[key].title} {as_text(value)})" for key, value in self.named_options.items())
        return " ".join([self.build_method().title, *shown])

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ whenever anything in the configuration does."""
        text = json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def folder(self) -> Path:
        """Where the run is recorded, below a folder of runs: task/method/seed-digest."""
        return Path(self.task_name) / self.method_name / f"{self.seed}-{self.digest}"
