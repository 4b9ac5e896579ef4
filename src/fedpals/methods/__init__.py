"""Methods = client rule × weighting.

FedPALS only touches the server's weighting, so it composes with every client rule: FedAvg is sgd ×
by_size, FedPALS sgd × pals, FedProx+FedPALS proximal × pals, and any other pair runs as well. A new
method is one small file with a rule or a weighting, which declares its options, and one row here. To
import this loads no torch, because the keys of a run and the flags of the command line come from here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from fedpals.data.validation import validated
from fedpals.errors import InputError
from fedpals.methods.agnostic import Agnostic
from fedpals.methods.full_batch import FullBatch
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.option import as_keys, declared, option
from fedpals.methods.pals import Pals
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import RestrictedSoftmax
from fedpals.methods.rule import ClientRule
from fedpals.methods.scaffold import Scaffold
from fedpals.methods.weighting import BySize, Weighting

__all__ = ["METHODS", "ClientRule", "Method", "Named", "Weighting", "method", "option", "option_keys", "options_of"]


@dataclass(frozen=True)
class Named:
    """What a name stands for. A name that sets only one half composes with one that sets the other."""

    title: str
    rule: type[ClientRule] | None = None
    weighting: type[Any] | None = None
    oracle: bool = False
    """Whether the clients are redrawn from the target's marginal."""


METHODS: Mapping[str, Named] = {
    "fedavg": Named("FedAvg"),
    "fedpals": Named("FedPALS", weighting=Pals),
    "fedsgd": Named("FedSGD", rule=FullBatch),
    "fedprox": Named("FedProx", rule=Proximal),
    "scaffold": Named("SCAFFOLD", rule=Scaffold),
    "fedrs": Named("FedRS", rule=RestrictedSoftmax),
    "logit_adjusted": Named("Logit-adjusted", rule=LogitAdjusted),
    "afl": Named("AFL", weighting=Agnostic),
    "oracle": Named("Oracle", oracle=True),
}


@dataclass(frozen=True)
class Method:
    """A client rule and a weighting, with their options."""

    name: str
    title: str
    rule: ClientRule
    weighting: Weighting
    oracle: bool

    @property
    def settled(self) -> dict[str, Any]:
        """The options that have no default, with the values that the method settled on."""
        return {
            key: getattr(part, key)
            for part in (self.rule, self.weighting)
            for key, field in declared(type(part)).items()
            if field.default is None
        }


def method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method of a name such as ``fedavg`` or ``fedprox+fedpals``.

    ``options`` are those of its rule and weighting; one that neither has, or a value out of bounds, is an error.

    >>> method("fedprox+fedpals", {"proximal_weight": 0.1, "ess": 0.5}).title
    'FedProx+FedPALS'
    """
    parts, rule, weighting = _parts(name)
    if unknown := sorted((options or {}).keys() - set(options_of(name))):
        known = ", ".join(options_of(name)) or "no options"
        raise InputError(f"{unknown[0]} is no option of the method {name!r}, which takes {known}")
    given = validated(_options(name), options or {}).model_dump(exclude_none=True)

    def made(part: type[Any]) -> Any:
        return part(**{key: given[key] for key in declared(part) if key in given})

    title = "+".join(p.title for p in parts)
    return Method(name, title, made(rule), made(weighting), any(p.oracle for p in parts))


def options_of(name: str) -> list[str]:
    """Return the options that the method of a name takes."""
    _, rule, weighting = _parts(name)
    return [*declared(rule), *declared(weighting)]


def option_keys() -> dict[str, tuple[Any, FieldInfo]]:
    """Return the options of all methods as `pydantic.create_model` takes fields; None stands for not given."""
    keys: dict[str, tuple[Any, FieldInfo]] = {}
    for part in (part for named in METHODS.values() for part in (named.rule, named.weighting) if part):
        for name, key in as_keys(part).items():
            if keys.setdefault(name, key)[1] is not key[1]:
                raise TypeError(f"{part.__name__} declares the option {name!r}, which is another method's: rename it")
    return keys


def _parts(name: str) -> tuple[list[Named], type[ClientRule], type[Any]]:
    parts = [_named(part, name) for part in name.split("+")]
    rule = _only([p.rule for p in parts if p.rule], name, "client rules") or ClientRule
    weighting = _only([p.weighting for p in parts if p.weighting], name, "weightings") or BySize
    return parts, rule, weighting


@cache
def _options(name: str) -> type[BaseModel]:
    _, rule, weighting = _parts(name)
    keys: dict[str, Any] = {**as_keys(rule), **as_keys(weighting)}
    return create_model("Options", **keys)


def _named(part: str, name: str) -> Named:
    if part in METHODS:
        return METHODS[part]
    near = difflib.get_close_matches(part, METHODS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"method {name!r}: {part!r} is not known; {hint}known are {', '.join(METHODS)}, joined by +")


def _only(candidates: list[type[Any]], name: str, what: str) -> type[Any] | None:
    if len(candidates) > 1:
        raise InputError(f"method {name!r} has two {what}; join one client rule with one weighting, as fedprox+fedpals")
    return candidates[0] if candidates else None
