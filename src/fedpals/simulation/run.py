"""A run: one federation × model × method × settings × seed, as a configuration that says everything.

A `Run` is composed of parts, each of which one module needs. Flat keys exist at the edges only: in TOML
files, in flags, and in the digest by which a run is found again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic.fields import FieldInfo

from fedpals.config import Settings, did_you_mean, hidden, key_help, source_digest, unset, validated
from fedpals.data import SOURCES, Federation, Task
from fedpals.data.sources.own import holds_vectors
from fedpals.data.task import MEMORY
from fedpals.engine.plan import Plan
from fedpals.engine.privacy import check_method
from fedpals.engine.protection import Protection
from fedpals.errors import InputError
from fedpals.methods import METHODS, Method, build_method, option_keys, options_of
from fedpals.methods.own import UnavailableRule, UnavailableWeighting
from fedpals.shift.evaluation import RIVAL_HEADS, Correction

DEFAULT_METHOD = "fedpals"
HELD_OUT = 0.1
"""Share that clients hold out to choose the ESS with, unless told otherwise."""
OWN_HELD_OUT = 0.2
"""Share that clients hold out, unless told otherwise, where nobody has samples of the target to select rounds with."""

Part = TypeVar("Part")


class Network(Settings):
    """What is trained: a network, and perhaps a frozen one before it."""

    model: str | None = Field(default=None, json_schema_extra=unset("what suits the data"))
    """logistic, linear (the same from zero), mlp, cnn, head, a backbone to fine-tune, or your own
    package.module:function."""
    backbone: Literal["mobilenet_v2", "mobilenet_v2_blocks", "resnet50", "resnet50_blocks"] | None = Field(
        default=None, json_schema_extra=unset("none, but for PACS and iWildCam")
    )
    """Frozen network whose features, of its last layer or of all blocks, take the place of the images."""
    image_size: int | None = Field(default=None, ge=8, json_schema_extra=unset("224"))
    """Pixels a side of images that are read from files, or that a backbone sees."""
    model_source: str | None = Field(default=None, json_schema_extra=hidden())
    """Digits of the source of your own model, so that a changed model is another run."""

    _builder: Callable[..., Any] | None = PrivateAttr(default=None)
    """A class or function that was given in Python."""

    @classmethod
    def of_builder(cls, builder: Callable[..., Any], **keys: Any) -> Network:
        """Return the network of a user's class or function."""
        name = getattr(builder, "__name__", type(builder).__name__)
        network = validated(cls, {"model": f"{MEMORY}{name}", "model_source": source_digest(builder), **keys})
        network._builder = builder  # noqa: SLF001 -- of our own object
        return network

    @property
    def builder(self) -> Callable[..., Any] | None:
        """The class or function that was given in Python."""
        return self._builder

    @property
    def is_own(self) -> bool:
        """Whether it is a user's network: code that is not this package's runs where it is built."""
        return self.model is not None and ":" in self.model

    @classmethod
    def for_task(cls, task: str, given: Mapping[str, Any]) -> Network:
        """Return the network for a data set: what is given, and for the rest what suits the data set."""
        keys, source = dict(given), SOURCES.get(task)
        if source is not None and source.backbone is not None and given.get("model") in {None, "head"}:
            keys = {"backbone": source.backbone, "image_size": source.image_size, **given}
        suitable = source.model if source is not None else _suitable_model(task)
        keys = {"model": suitable or ("head" if "backbone" in keys else "cnn"), **keys}
        model = str(keys["model"])
        if ":" in model and not model.startswith(MEMORY) and (digits := _module_digest(model.partition(":")[0])):
            keys.setdefault("model_source", digits)
        return validated(cls, keys)


def _suitable_model(task: str) -> str | None:
    """Return the network for a user's file: logistic regression from zero for tables; None for images."""
    path = Path(task).expanduser()
    table = path.suffix in {".csv", ".tsv"} or (path.suffix == ".npz" and path.is_file() and holds_vectors(path))
    return "linear" if table else None


def _module_digest(module: str) -> str | None:
    """Return digits of a module's source; None where it cannot be found. Neither it nor its packages are run."""
    path: Sequence[str] | None = None
    spec = None
    for name in itertools.accumulate(module.split("."), "{}.{}".format):
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:8]


class ServerPlan(Settings):
    """How the server trains: how many rounds, with whom, and how it moves."""

    rounds: int = Field(default=60, ge=1)
    """Rounds of training."""
    participation: float = Field(default=1.0, gt=0, le=1)
    """Fraction of clients that take part in each round."""
    server_momentum: float | None = Field(default=None, gt=0, lt=1, json_schema_extra=unset("none"))
    """Share of its last move that the global model repeats in every round."""
    averaging: float | None = Field(default=None, gt=0, lt=1, json_schema_extra=unset("none"))
    """Decay of the running mean of the global models, which is evaluated and kept in place of the last of them."""
    patience: int | None = Field(default=None, ge=1, json_schema_extra=unset("never"))
    """Stop when validation, or the estimate of clients that hold samples out, has not improved for so many rounds."""


class Knowledge(Settings):
    """What the server gets to know of labels: counts, T, and what clients say of samples that they hold out."""

    held_out: float | None = Field(default=None, gt=0, lt=1, json_schema_extra=unset("none"))
    """Share of its samples that every client keeps out of training, to estimate the target risk with."""
    target_noise: float | None = Field(default=None, ge=0, allow_inf_nan=False, json_schema_extra=unset("0"))
    """δ of the noise on what the server takes for T; it knows T exactly unless given."""
    target_estimate: Literal["bbse", "em"] | None = Field(default=None, json_schema_extra=unset("T is known"))
    """Estimate T after every round from unlabelled inputs of the target, as if it were unknown; needs held_out."""
    count_epsilon: float | None = Field(default=None, gt=0, le=100, json_schema_extra=unset("no noise"))
    """ε of the noise that clients add to their label counts; the server knows the counts exactly unless given."""
    heads: str | None = Field(default=None, json_schema_extra=unset("none"))
    """Last layers of other authors to evaluate too, after the last round: fedcgs, fed3r, fedcof, ccvr, or joined:
    fedcgs+ccvr."""

    @property
    def rival_heads(self) -> tuple[Correction, ...]:
        """The last layers of other authors that are evaluated."""
        return tuple(Correction(name) for name in self.heads.split("+")) if self.heads else ()

    @field_validator("heads")
    @classmethod
    def _heads_exist(cls, heads: str | None) -> str | None:
        names = [head.value for head in RIVAL_HEADS]
        for name in () if heads is None else heads.split("+"):
            if name not in names:
                raise InputError(
                    f"heads is {heads!r}; {name!r} is none of {', '.join(names)}{did_you_mean(name, names)}"
                )
        return heads

    def check_private(self) -> None:
        """Raise `InputError` if clients say something about their samples that noise on the models does not cover."""
        for key in ("held_out", "heads"):
            if (value := getattr(self, key)) is not None:
                raise InputError(
                    f"{key} is {value!r}, but with clip_update nothing may be selected or computed from exact sums "
                    f"over clients' samples, which carry no noise; leave {key} out"
                )

    @model_validator(mode="after")
    def _target_comes_from_one_place(self) -> Self:
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


class Seed(Settings):
    """What repeats a run."""

    seed: int = Field(default=0, ge=0)
    """Decides every draw."""


class MethodName(Settings):
    """Which method; its options follow from it."""

    method: str = Field(default=DEFAULT_METHOD, description="METHODS, or joined: fedprox+fedpals.")
    method_source: str | None = Field(default=None, json_schema_extra=hidden())
    """Digits of the source of your own client rule or weighting, so that a changed one is another run."""


@dataclass(frozen=True)
class Run:
    """All that determines a run's result; equal configurations give equal bits.

    >>> Run.of(task="fashion-mnist", method="fedpals", ess=0.5, seed=3).folder.parent.as_posix()
    'fashion-mnist-C3/fedpals-ess0.5'
    """

    data: Task
    method: Method
    network: Network
    plan: Plan
    server: ServerPlan
    knowledge: Knowledge
    seed: int = 0
    protection: Protection = field(default_factory=Protection)

    def __post_init__(self) -> None:
        if self.protection.private:
            check_method(self.method)
            self.knowledge.check_private()
            if self.data.own_clients:
                raise InputError(
                    "clip_update: with your own clients, rounds are selected and inputs scaled by exact sums over "
                    "their samples, which carry no noise; train with a strategy of fedpals.flower, which does neither"
                )

    @classmethod
    def of(cls, keys: Mapping[str, Any] | None = None, /, **more: Any) -> Run:
        """Compose a run of flat keys, as TOML files and flags give them; None stands for not given.

        Raises
        ------
        InputError
            A line for every key that is unknown or has a value that it must not have.
        """
        given = {key: value for key, value in {**(keys or {}), **more}.items() if value is not None}
        every = {key.name: key.kind for key in run_keys()}
        if "method_source" in given and not _is_registered(str(given["method"])):
            own = {key: given.pop(key) for key in [*given] if key not in every or key in option_keys()}
        else:
            own = None
        for key in given:
            if key not in every:
                hint = did_you_mean(key, every) or f"; the keys are {', '.join(sorted(every))}"
                raise InputError(f"{key!r} is not a known key{hint}")
            if every[key] is not bool:
                _check_number(key, given[key])
        complaints: list[str] = []

        def build(part: Callable[[dict[str, Any]], Part], keys: Iterable[str]) -> Part | None:
            try:
                return part({key: given[key] for key in keys if key in given})
            except InputError as error:
                complaints.append(str(error))
                return None

        task = build(partial(validated, Task), Task.model_fields)
        protection = build(partial(validated, Protection), Protection.model_fields)
        is_private = protection is not None and protection.private
        if task is not None and task.own_clients and not is_private:
            given.setdefault("held_out", OWN_HELD_OUT)  # what else could a round be selected with?
        if "held_out" in given and _has_ess_to_choose(given) and not is_private:
            given["ess"] = "auto"
        method = build(partial(_build_method, own), ("method", "method_source", *option_keys()))
        name = str(given.get("task", Task.model_fields["task"].default))
        network = build(partial(Network.for_task, name), Network.model_fields)
        plan = build(partial(validated, Plan), Plan.model_fields)
        server = build(partial(validated, ServerPlan), ServerPlan.model_fields)
        if method is not None and method.weighting.chooses:
            given.setdefault("held_out", HELD_OUT)
        knowledge = build(partial(validated, Knowledge), Knowledge.model_fields)
        seed = build(partial(validated, Seed), Seed.model_fields)
        if not (task and method and network and plan and server and knowledge and seed and protection):
            raise InputError("\n".join(complaints))
        return cls(task, method, network, plan, server, knowledge, seed.seed, protection)

    def keys(self) -> dict[str, Any]:
        """Return the flat keys; `of` makes the same run of them."""
        return {
            **self.data.keys(),
            "method": self.method.name,
            **({"method_source": self.method.source} if self.method.source else {}),
            **self.method.options,
            **self.network.keys(),
            **self.plan.keys(),
            **self.server.keys(),
            **self.protection.keys(),
            **self.knowledge.keys(),
            "seed": self.seed,
        }

    def build_federation(self, folder: Path | None = None) -> Federation:
        """Return the federation that the run trains on; ``folder`` is where official files are looked for first."""
        federation = self.data.federation(self.seed, oracle=self.method.oracle, folder=folder)
        held_out = self.knowledge.held_out
        if held_out is not None:
            federation = federation.holding_out(held_out, self.seed)
        return federation.pooled() if self.method.pooled else federation

    @property
    def name(self) -> str:
        """How messages call the run."""
        return f"{self.data.name} {self.method.full_name} seed {self.seed}"

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ whenever anything in the configuration does."""
        return hashlib.sha256(json.dumps(self.keys(), sort_keys=True).encode()).hexdigest()[:8]

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def folder(self) -> Path:
        """Where the run is recorded, below a folder of runs: task/method/seed-digest."""
        return Path(self.data.name) / self.method.full_name / f"{self.seed}-{self.digest}"


def _check_number(key: str, value: Any) -> None:
    """Refuse what would pass for a number: yes and no, and more digits than a computer counts with."""
    if isinstance(value, bool):
        raise InputError(f"{key} is {str(value).lower()}; give a number or a name")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise InputError(f"{key} is {value}; give a number of at most 18 digits")


def _build_method(own: Mapping[str, Any] | None, keys: dict[str, Any]) -> Method:
    """Return the method of its keys; one given in Python, whose options are ``own``, can only be read about."""
    source = keys.pop("method_source", None)
    name = validated(MethodName, {"method": keys.pop("method", DEFAULT_METHOD)}).method
    if own is None:
        return build_method(name, keys)
    rule, weighting = UnavailableRule(name), UnavailableWeighting(name)
    return Method(name, name, rule, weighting, oracle=False, options=own, source=source)


def _is_registered(name: str) -> bool:
    return all(part in METHODS for part in name.split("+"))


@dataclass(frozen=True)
class RunKey:
    """A key of a run, as the command line needs to know it."""

    name: str
    kind: Any
    """Its type; a union with None where it may be left out."""
    info: FieldInfo
    model: type[Settings] | None
    """The part of the run that it belongs to; None for options of methods."""

    @property
    def part(self) -> str:
        """Name of the part of the run that it belongs to; "options" for those of methods."""
        return "options" if self.model is None else self.model.__name__

    @property
    def help(self) -> str:
        """What it means, in a sentence."""
        return self.info.description or "" if self.model is None else key_help(self.model, self.name)


def _has_ess_to_choose(given: Mapping[str, Any]) -> bool:
    """Return whether the method has an ESS, and neither it nor λ is given."""
    name = str(given.get("method", DEFAULT_METHOD))
    return "lam" not in given and "ess" not in given and _is_registered(name) and "ess" in options_of(name)


def run_keys() -> Iterator[RunKey]:
    """Yield all keys of a run, in the order in which help lists them."""
    parts: tuple[type[Settings], ...] = (Task, MethodName, Network, Plan, ServerPlan, Protection, Knowledge, Seed)
    for part in parts:
        for name, info in part.model_fields.items():
            yield RunKey(name, info.annotation, info, part)
        if part is MethodName:
            for name, (kind, info) in option_keys().items():
                yield RunKey(name, kind, info, None)
