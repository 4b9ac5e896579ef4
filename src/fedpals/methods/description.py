"""A client rule as a message carries it, its name and its options; and all options of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedpals.errors import InputError
from fedpals.methods import METHODS, ClientRule, Method


def describe_rule(rule: ClientRule) -> dict[str, Any]:
    """Return the name and the options of a rule."""
    return {"name": rule.name, **asdict(rule)}


def described_rule(description: Mapping[str, Any]) -> ClientRule:
    """Return the rule that `describe_rule` described, one of those that this machine has, registered ones included."""
    options = dict(description)
    name = str(options.pop("name"))
    rules: list[type[ClientRule]] = [ClientRule, *(entry.rule for entry in METHODS.values() if entry.rule)]
    by_name = {rule.name: rule for rule in rules}
    if name not in by_name:
        raise InputError(
            f"the server asks for the client rule {name!r}, but this client has {', '.join(by_name)}; update fedpals, "
            "or register the rule here too (fedpals.register)"
        )
    return by_name[name](**options)


def all_options(method: Method) -> dict[str, Any]:
    """Return the options of a method's client rule and weighting, those with their defaults included."""
    return {**asdict(method.rule), **asdict(method.weighting)}
