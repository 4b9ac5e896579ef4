"""A trained model for the target: raw inputs in, probabilities out; and the file that keeps all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor, nn

from fedpals.data.dataset import ImageFiles, Samples
from fedpals.data.inputs import as_samples, column_names
from fedpals.data.scaling import Scaling
from fedpals.engine import checkpoint
from fedpals.engine.flat_model import FlatModel
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.models import build, build_own, check_trust, embed, prepare
from fedpals.shift import Head
from fedpals.shift.calibration import Calibration
from fedpals.shift.evaluation import Correction
from fedpals.shift.gaussian import Displaced
from fedpals.shift.prior import prior_shift

_CHUNK = 1024
"""Inputs that are prepared at a time."""
_EXTRA = ("prior_shift", "temperature", "stands_for", "displaced_axes", "displaced_centres")
_INPUT = ("input_shift", "input_scale", "input_fill")


@dataclass(frozen=True)
class ModelFacts:
    """What must be known of a model besides its parameters."""

    labels: tuple[str, ...]
    target: tuple[float, ...]
    """T that it was made for."""
    correction: Correction
    round: int
    prior: tuple[float, ...]
    """The label mix that its training has built in."""
    samples: float
    """N, of all clients."""
    shape: tuple[int, ...]
    """Of one input of the network."""
    model: str = "cnn"
    """As `fedpals.models.build` knows it."""
    backbone: str | None = None
    image_size: int | None = None
    columns: tuple[str, ...] = ()
    """Names of the columns of a table, in the order of training."""
    method: str | None = None
    """Title of the method that trained it, where a study chose it; so the next three."""
    seed: int | None = None
    estimate: float | None = None
    """Target accuracy as clients' held-out samples estimate it."""
    standard_error: float | None = None
    """Of ``estimate``."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: value for key, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelFacts:
        """Read what `to_json` wrote."""
        plain: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
        plain["correction"] = Correction(plain["correction"])
        return cls(**plain)


class TargetModel:
    """A network and what its outputs are corrected with: predicts for the target from raw inputs.

    Attributes
    ----------
    facts
        Labels, T, and where the model comes from.
    """

    def __init__(
        self, model: FlatModel, facts: ModelFacts, use: Head | Calibration | None = None, scaling: Scaling | None = None
    ) -> None:
        self.facts, self.scaling, self._model, self._use = facts, scaling, model, use

    def __repr__(self) -> str:
        facts = self.facts
        origin = "" if facts.method is None else f" of {facts.method}, seed {facts.seed}"
        worth = "" if facts.estimate is None else f"; estimated target accuracy {100 * facts.estimate:.1f}"
        if worth and facts.standard_error is not None:
            worth += f" ± {100 * facts.standard_error:.1f}"
        unit = " %" if worth else ""
        mix = ", ".join(f"{label} {share:.1%}" for label, share in zip(facts.labels, facts.target, strict=True))
        return f"<TargetModel{origin}: {facts.correction}, round {facts.round}{worth}{unit}; T: {mix}>"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the probabilities."""
        return self.facts.labels

    @property
    def network(self) -> nn.Module:
        """The network itself; its outputs are not corrected."""
        return self._model.network

    def predict_proba(self, x: Any, *, target: npt.ArrayLike | Mapping[str, float] | None = None) -> Vector:
        """Return p_T(y|x), (n, K), for raw inputs: arrays as those it was trained on, or image files.

        ``target`` is another T than the one that the model was made for.
        """
        return np.asarray(scipy.special.softmax(self.logits(x, target=target), axis=1))

    def predict(self, x: Any, *, target: npt.ArrayLike | Mapping[str, float] | None = None) -> npt.NDArray[np.str_]:
        """Return the most probable label of each input, by name."""
        return np.asarray(np.array(self.labels)[self.logits(x, target=target).argmax(axis=1)])

    def logits(self, x: Any, *, target: npt.ArrayLike | Mapping[str, float] | None = None) -> Vector:
        """Return corrected outputs, (n, K)."""
        use = self._use if target is None else self._for_target(target)
        images = x if isinstance(x, ImageFiles) else as_samples(self._in_order(x))
        parts = [self._part(images, rows, use) for rows in _chunks(len(images))]
        return np.concatenate(parts) if parts else np.empty((0, len(self.labels)))

    def save(self, path: Path | str) -> None:
        """Write everything to a .safetensors file, whole or not at all; `load` reads it."""
        tensors = {key: value.clone() for key, value in self._model.network.state_dict().items()}
        if isinstance(self._use, Head):
            tensors["stands_for"] = torch.from_numpy(self._use.stands_for)
            if self._use.displaced is not None:
                tensors["displaced_axes"] = torch.from_numpy(self._use.displaced.axes)
                tensors["displaced_centres"] = torch.from_numpy(self._use.displaced.centres)
        elif isinstance(self._use, Calibration):
            tensors["prior_shift"] = torch.from_numpy(self._use.shift)
            tensors["temperature"] = torch.tensor(self._use.temperature, dtype=torch.float64)
        if self.scaling is not None:
            arrays = (self.scaling.shift, self.scaling.scale, self.scaling.fill)
            kept = {name: array for name, array in zip(_INPUT, arrays, strict=True) if array is not None}
            tensors |= {name: torch.from_numpy(array) for name, array in kept.items()}
        checkpoint.save(Path(path), tensors, self.facts.to_json())

    @classmethod
    def load(
        cls, path: Path | str, network: Callable[..., Any] | nn.Module | None = None, *, trust: bool = False
    ) -> TargetModel:
        """Read a model that `save` wrote.

        ``network`` is the class or function that it was trained with, or an object of it; it is needed where the
        network is not one of this package's. A file may name the network of a module instead; ``trust`` says that its
        code may be run.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file; give a .safetensors file that a model was saved to")
        tensors, values = checkpoint.load(path)
        try:
            facts = ModelFacts.from_json(values)
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: not a saved model of this program; train it again") from None
        own, extra = dict(tensors), {}
        for name in (*_EXTRA, *_INPUT):
            if name in own:
                extra[name] = own.pop(name)
        model = FlatModel(_network(path, facts, network, trust=trust))
        try:
            model.network.load_state_dict(own)
        except RuntimeError as error:
            raise InputError(
                f"{path} does not fit the network ({' '.join(str(error).split())[:200]}); give its own"
            ) from None
        return cls(model, facts, _use(model, extra), _scaling(extra))

    def _in_order(self, x: Any) -> Any:
        """Return a pandas table with the columns of training in their order; anything else as it is."""
        names = column_names(x)
        if not names or not self.facts.columns:
            return x
        if missing := [name for name in self.facts.columns if name not in names]:
            raise InputError(f"x has no column {missing[0]!r}, which the model was trained with; add it")
        return x[list(self.facts.columns)]

    def _part(self, x: Samples, rows: npt.NDArray[np.int64], use: Head | Calibration | None) -> Vector:
        inputs = self._inputs(x, rows)
        if tuple(inputs.shape[1:]) != self.facts.shape:
            raise InputError(
                f"x: samples of shape {tuple(inputs.shape[1:])}, but the model was trained on {self.facts.shape}; give "
                "inputs of that kind"
            )
        if isinstance(use, Head):
            features = self._model.features(inputs)
            assert features is not None
            return use(features.double().cpu().numpy())
        logits = self._model.logits(inputs).double().cpu().numpy()
        return logits if use is None else use(logits)

    def _inputs(self, x: Samples, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return inputs as the network sees them."""
        size = self.facts.image_size
        if self.facts.backbone is not None:
            return torch.from_numpy(embed(x, rows, self.facts.backbone, size=size or 224))
        values = x.take(rows, size or self.facts.shape[-1]) if isinstance(x, ImageFiles) else x[rows]
        if self.scaling is not None:
            values = self.scaling(values)
        if np.issubdtype(values.dtype, np.floating) and np.isnan(values).any():
            row = int(rows[np.argwhere(np.isnan(values))[0][0]])
            raise InputError(
                f"x: row {row} has a missing value (NaN), and the model was trained without any; fill it in"
            )
        return prepare(values)

    def _for_target(self, target: npt.ArrayLike | Mapping[str, float]) -> Calibration:
        """Return the correction for another T: the shift for it, and of a calibration what does not depend on T."""
        if isinstance(self._use, Head):
            raise InputError(
                "target: the last layer of this model was made for its own T; take the model with the prior correction"
            )
        counts = LabelCounts.of(np.ones((1, len(self.labels))), labels=self.labels)
        values = [target.get(label, 0.0) for label in self.labels] if isinstance(target, Mapping) else target
        facts, T = self.facts, as_target(values, counts)
        prior = np.asarray(facts.prior)
        shift = prior_shift(T, prior, facts.samples)
        if self._use is None:
            return Calibration(1.0, shift)
        own = prior_shift(np.asarray(facts.target), prior, facts.samples)
        with np.errstate(invalid="ignore"):
            bias = np.where(np.isfinite(own), self._use.shift - own, 0.0)
        return Calibration(self._use.temperature, shift + bias)


def with_last_layer(model: FlatModel, vector: Tensor, use: Head | Calibration | None) -> FlatModel:
    """Load the parameters ``vector`` into the network; a `Head` takes the place of its last layer."""
    model.load(vector)
    if isinstance(use, Head):
        model.network.load_state_dict({**model.network.state_dict(), **model.last_layer(use.weight, use.bias)})
    return model


def _chunks(samples: int) -> list[npt.NDArray[np.int64]]:
    return [np.arange(start, min(start + _CHUNK, samples)) for start in range(0, samples, _CHUNK)]


def _network(
    path: Path, facts: ModelFacts, network: Callable[..., Any] | nn.Module | None, *, trust: bool
) -> nn.Module:
    if isinstance(network, nn.Module):
        return network
    settings: dict[str, Any] = {"shape": facts.shape, "classes": len(facts.labels), "seed": 0}
    if network is not None:
        return build_own(network, **settings)
    if facts.model.startswith("memory:"):
        name = facts.model.removeprefix("memory:")
        raise InputError(
            f"{path} was trained with your own network {name}, whose code it does not have; in Python give it: "
            f"load({str(path)!r}, {name}); for the command line keep it in a file, net.py, train with "
            f"model='net:{name}' (--model net:{name}), and predict with --trust"
        )
    check_trust(facts.model, path, trust=trust)
    return build(facts.model, **settings)


def _use(model: FlatModel, extra: Mapping[str, Tensor]) -> Head | Calibration | None:
    if "stands_for" in extra:
        displaced = None
        if "displaced_axes" in extra:
            displaced = Displaced(extra["displaced_axes"].numpy(), extra["displaced_centres"].numpy())
        weight, bias = model.last_parameters()
        return Head(weight, bias, extra["stands_for"].numpy(), displaced)
    if "prior_shift" in extra:
        return Calibration(float(extra["temperature"]), extra["prior_shift"].numpy())
    return None


def _scaling(extra: Mapping[str, Tensor]) -> Scaling | None:
    if "input_shift" not in extra:
        return None
    fill = extra["input_fill"].numpy() if "input_fill" in extra else None
    return Scaling(extra["input_shift"].numpy(), extra["input_scale"].numpy(), fill)
