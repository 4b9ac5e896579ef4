"""Methods = client rule × weighting.

FedPALS only touches the server's weighting, so it composes with every client rule: FedAvg is sgd ×
by_size, FedPALS sgd × pals, FedProx+FedPALS proximal × pals, and any other pair runs as well. A new
method is one small file with a rule or a weighting, and one row here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedpals.errors import InputError
from fedpals.methods.agnostic import Agnostic
from fedpals.methods.full_batch import FullBatch
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.pals import Pals
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import RestrictedSoftmax
from fedpals.methods.scaffold import Scaffold
from fedpals.methods.weighting import BySize, Weighting
from fedpals.training import ClientRule

__all__ = ["METHODS", "Method", "Named", "Weighting", "method", "option_names", "options_of"]


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
    "fedsgd": Named("FedSGD", rule=FullBatch),
    "fedprox": Named("FedProx", rule=Proximal),
    "scaffold": Named("SCAFFOLD", rule=Scaffold),
    "fedrs": Named("FedRS", rule=RestrictedSoftmax),
    "logit_adjusted": Named("Logit-adjusted", rule=LogitAdjusted),
    "afl": Named("AFL", weighting=Agnostic),
    "fedpals": Named("FedPALS", weighting=Pals),
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


def method(name: str, options: Mapping[str, float] | None = None) -> Method:
    """Return the method of a name such as ``fedavg`` or ``fedprox+fedpals``.

    ``options`` are fields of its rule and weighting; one that neither has is an error.

    >>> method("fedprox+fedpals", {"proximal_weight": 0.1, "ess": 0.5}).title
    'FedProx+FedPALS'
    """
    parts, rule, weighting = _parts(name)
    given = dict(options or {})

    def made(part: type[Any]) -> Any:
        return part(**{key: given.pop(key) for key in _options(part) if key in given})

    client_rule, server_weighting = made(rule), made(weighting)
    if given:
        key = sorted(given)[0]
        known = options_of(name)
        raise InputError(
            f"{key} is no option of the method {name!r}, which takes {', '.join(known) if known else 'no options'}"
        )
    title = "+".join(p.title for p in parts)
    return Method(name, title, client_rule, server_weighting, any(p.oracle for p in parts))


def options_of(name: str) -> list[str]:
    """Return the options that the method of a name takes."""
    _, rule, weighting = _parts(name)
    return [*_options(rule), *_options(weighting)]


def option_names() -> frozenset[str]:
    """Return the options of all methods."""
    parts = [part for named in METHODS.values() for part in (named.rule, named.weighting) if part]
    return frozenset(key for part in parts for key in _options(part))


def _parts(name: str) -> tuple[list[Named], type[ClientRule], type[Any]]:
    parts = [_named(part, name) for part in name.split("+")]
    rule = _only([p.rule for p in parts if p.rule], name, "client rules") or ClientRule
    weighting = _only([p.weighting for p in parts if p.weighting], name, "weightings") or BySize
    return parts, rule, weighting


def _options(part: type[Any]) -> list[str]:
    return [field.name for field in fields(part)]


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
