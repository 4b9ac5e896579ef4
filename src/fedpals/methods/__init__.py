"""Methods = client rule × weighting.

FedPALS only touches the server's weighting, so it composes with every client rule: FedAvg is sgd ×
by_size, FedPALS sgd × pals, FedProx+FedPALS proximal × pals, and any other pair runs as well. A new
method is one small file with a rule or a weighting, which declares its options, and one row here. To
import this loads no torch, because the keys of a run and the flags of the command line come from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from fedpals.config import did_you_mean, validated
from fedpals.errors import InputError
from fedpals.methods.agnostic import Agnostic
from fedpals.methods.calibrated_logits import CalibratedLogits
from fedpals.methods.discrepancy import Discrepancy
from fedpals.methods.full_batch import FullBatch
from fedpals.methods.importance_weighted import ImportanceWeighted
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.option import as_keys, as_text, declared_options, option
from fedpals.methods.own import check_part, own_name, own_options, own_source
from fedpals.methods.pals import Pals
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import BinarySoftmax, GradedSoftmax
from fedpals.methods.rule import ClientRule
from fedpals.methods.scaffold import Scaffold
from fedpals.methods.weighting import Weighting

__all__ = [
    "METHODS",
    "ClientRule",
    "Method",
    "MethodEntry",
    "Weighting",
    "build_method",
    "method_of",
    "option",
    "option_keys",
    "options_of",
    "register",
]


@dataclass(frozen=True)
class MethodEntry:
    """What a name stands for. A name that sets only one half composes with one that sets the other."""

    title: str
    rule: type[ClientRule] | None = None
    weighting: type[Weighting] | None = None
    oracle: bool = False
    """Whether the clients are redrawn from the target's marginal."""
    pooled: bool = False
    """Whether one client has the samples of all."""


METHODS: dict[str, MethodEntry] = {
    "fedavg": MethodEntry("FedAvg"),
    "fedpals": MethodEntry("FedPALS", weighting=Pals),
    "fedsgd": MethodEntry("FedSGD", rule=FullBatch),
    "fedprox": MethodEntry("FedProx", rule=Proximal),
    "scaffold": MethodEntry("SCAFFOLD", rule=Scaffold),
    "fedrs_graded": MethodEntry("FedRS", rule=GradedSoftmax),
    "fedrs_binary": MethodEntry("FedRS (binary)", rule=BinarySoftmax),
    "fedlc": MethodEntry("FedLC", rule=CalibratedLogits),
    "logit_adjusted": MethodEntry("Logit-adjusted", rule=LogitAdjusted),
    "iwerm": MethodEntry("IW-ERM", rule=ImportanceWeighted),
    "afl": MethodEntry("AFL", weighting=Agnostic),
    "feddisco": MethodEntry("FedDisco", weighting=Discrepancy),
    "pooled": MethodEntry("Pooled", pooled=True),
    "oracle": MethodEntry("Oracle", oracle=True),
}
_SHORT_NAMES = {"fedrs": "fedrs_graded"}
"""Names that stand for a longer one, which is what records hold."""


@dataclass(frozen=True)
class Method:
    """A client rule and a weighting, with their options."""

    name: str
    title: str
    rule: ClientRule
    weighting: Weighting
    oracle: bool
    options: Mapping[str, Any]
    """The options that were given, and those that the method settled itself; the others have their defaults."""
    source: str | None = None
    """Digits of the source of rule and weighting, where they are a user's own."""
    pooled: bool = False

    @property
    def named_options(self) -> dict[str, Any]:
        """Those options that are part of the method's name: the ones declared with a symbol."""
        return {key: value for key, value in self.options.items() if self._symbols.get(key)}

    @property
    def _symbols(self) -> dict[str, str | None]:
        """What tables call the options."""
        keys = {**as_keys(type(self.rule)), **as_keys(type(self.weighting))}
        return {key: info.title for key, (_, info) in keys.items()}

    @property
    def full_name(self) -> str:
        """The name with what sets the method apart, for folders and tables."""
        return self.name + "".join(f"-{key}{as_text(value)}" for key, value in self.named_options.items())

    @property
    def full_title(self) -> str:
        """The method as tables and legends call it, with what sets it apart."""
        shown = (f"({self._symbols[key]} {as_text(value)})" for key, value in self.named_options.items())
        return " ".join([self.title, *shown])


def build_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method of a name such as ``fedavg`` or ``fedprox+fedpals``.

    ``options`` are those of its rule and weighting; one that neither has, or a value out of bounds, is an error.

    >>> build_method("fedprox+fedpals", {"proximal_weight": 0.1, "ess": 0.5}).title
    'FedProx+FedPALS'
    """
    name = "+".join(_SHORT_NAMES.get(part, part) for part in name.split("+"))
    entries, rule_class, weighting_class = _parts(name)
    if unknown := sorted((options or {}).keys() - set(options_of(name))):
        takes = ", ".join(options_of(name)) or "no options"
        raise InputError(f"{unknown[0]} is no option of the method {name!r}, which takes {takes}")
    given = validated(_options(name), options or {}).model_dump(exclude_none=True)

    def build(part: type[Any]) -> Any:
        return part(**{key: given[key] for key in declared_options(part) if key in given})

    rule, weighting = build(rule_class), build(weighting_class)
    settled = {
        key: getattr(part, key)
        for part in (rule, weighting)
        for key, field in declared_options(type(part)).items()
        if field.default is None and getattr(part, key) is not None
    }
    title = "+".join(entry.title for entry in entries)
    oracle, pooled = any(entry.oracle for entry in entries), any(entry.pooled for entry in entries)
    return Method(name, title, rule, weighting, oracle, {**given, **settled}, own_source(rule, weighting), pooled)


def method_of(given: Any, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method that a name, an object, or a pair of them stands for.

    ``options`` are for names. An object of a `ClientRule` subclass is joined with FedAvg's weighting, one of a
    `Weighting` subclass with plain SGD; a pair joins a rule with a weighting, as ``(MyRule(), "fedpals")``.

    >>> method_of((Proximal(0.1), "fedpals"), {"ess": 0.5}).name
    'proximal+fedpals'
    """
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return build_method(given, options)
    parts = given if isinstance(given, tuple) else (given,)
    rule, weighting, oracle, pooled = ClientRule(), Weighting(), False, False
    names, titles = list[str](), list[str]()
    chosen: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, str):
            named = build_method(part, {key: v for key, v in (options or {}).items() if key in options_of(part)})
            rule = named.rule if type(named.rule) is not ClientRule else rule
            weighting = named.weighting if type(named.weighting) is not Weighting else weighting
            oracle, pooled = oracle or named.oracle, pooled or named.pooled
            names, titles, chosen = [*names, named.name], [*titles, named.title], {**chosen, **named.options}
            continue
        check_part(part)
        rule, weighting = (part, weighting) if isinstance(part, ClientRule) else (rule, part)
        names, titles, chosen = (
            [*names, own_name(part)],
            [*titles, type(part).__name__],
            {**chosen, **own_options(part)},
        )
    source = own_source(rule, weighting)
    return Method("+".join(names), "+".join(titles), rule, weighting, oracle, chosen, source, pooled)


def register(
    name: str,
    *,
    rule: type[ClientRule] | None = None,
    weighting: type[Weighting] | None = None,
    title: str | None = None,
) -> None:
    """Give a client rule or a weighting a name: for `fedpals.train`, TOML files, the command line and Flower.

    Its options, declared with `fedpals.option`, become keys and flags. Call it where the class is defined; a package
    that names its module in the entry-point group ``fedpals.methods`` is loaded by the command line.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(f"name is {name!r}; give small letters, digits and underscores")
    entry = MethodEntry(title or name, rule, weighting)
    if name in _SHORT_NAMES or (name in METHODS and METHODS[name] != entry):
        raise InputError(f"a method {name!r} is there already; choose another name")
    if rule is None and weighting is None:
        raise InputError(f"{name}: give a rule or a weighting")
    for part in (rule, weighting):
        if part is not None:
            check_part(part())
    METHODS[name] = entry
    option_keys()  # an option that another method has is an error now, not when somebody runs it


def options_of(name: str) -> list[str]:
    """Return the options that the method of a name takes."""
    _, rule, weighting = _parts(name)
    return [*declared_options(rule), *declared_options(weighting)]


def option_keys() -> dict[str, tuple[Any, FieldInfo]]:
    """Return type and field of the options of all methods, which are keys of a run; None stands for not given."""
    keys: dict[str, tuple[Any, FieldInfo]] = {}
    for part in (part for entry in METHODS.values() for part in (entry.rule, entry.weighting) if part):
        for name, key in as_keys(part).items():
            if keys.setdefault(name, key)[1] is not key[1]:
                raise TypeError(f"{part.__name__} declares the option {name!r}, which is another method's: rename it")
    return keys


def _parts(name: str) -> tuple[list[MethodEntry], type[ClientRule], type[Weighting]]:
    entries = [_entry(part, name) for part in name.split("+")]
    rule = _only([entry.rule for entry in entries if entry.rule], name, "client rules") or ClientRule
    weighting = _only([entry.weighting for entry in entries if entry.weighting], name, "weightings") or Weighting
    return entries, rule, weighting


@cache
def _options(name: str) -> type[BaseModel]:
    _, rule, weighting = _parts(name)
    keys: dict[str, Any] = {**as_keys(rule), **as_keys(weighting)}
    return create_model("Options", **keys)


def _entry(part: str, name: str) -> MethodEntry:
    if (full := _SHORT_NAMES.get(part, part)) in METHODS:
        return METHODS[full]
    hint = did_you_mean(part, METHODS)
    raise InputError(f"method {name!r}: {part!r} is not known{hint} (known are {', '.join(METHODS)}, joined by +)")


def _only(candidates: list[type[Any]], name: str, what: str) -> type[Any] | None:
    if len(candidates) > 1:
        raise InputError(f"method {name!r} has two {what}; join one client rule with one weighting, as fedprox+fedpals")
    return candidates[0] if candidates else None
