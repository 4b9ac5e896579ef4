"""Options of methods: a field of a rule or weighting says all there is to say about a key of a run."""

from __future__ import annotations

from dataclasses import Field, field, fields
from functools import cache, partial
from typing import Any, TypeVar, cast, get_type_hints

import pydantic
from pydantic.fields import FieldInfo

T = TypeVar("T")

_KEY = "key"
_type_hints = cache(
    partial(get_type_hints, include_extras=True)
)  # to evaluate them takes a while, and an experiment asks thousands of times


def option(
    default: T,
    meaning: str,
    *,
    symbol: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> T:
    """Declare a field of a rule or weighting as an option: a key of a run and a flag of ``fedpals run``.

    Parameters
    ----------
    default
        The value unless one is given. None: the method settles the value when it is built, and that value is
        written into the run's configuration.
    meaning
        The help, without the default and the full stop.
    symbol
        What tables call the option. One with a symbol is part of the method's name in tables and folders.
    ge, gt, le, lt
        Bounds on the value.
    """
    help_text = meaning if default is None else f"{meaning}; {as_text(default)} unless given"
    key = pydantic.Field(default=None, title=symbol, description=f"{help_text}.", ge=ge, gt=gt, le=le, lt=lt)
    return field(default=default, metadata={_KEY: key})


def declared_options(part: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a rule or weighting that are options."""
    return {f.name: f for f in fields(part) if _KEY in f.metadata}


def as_keys(part: type[Any]) -> dict[str, tuple[Any, FieldInfo]]:
    """Return the options of a rule or weighting as `pydantic.create_model` takes fields; None stands for not given."""
    kinds = _type_hints(cast("Any", part))  # a class is hashable, which mypy does not know
    return {name: (kinds[name] | None, f.metadata[_KEY]) for name, f in declared_options(part).items()}


def as_text(value: object) -> str:
    """Return an option's value as names and help show it.

    >>> as_text(1.0), as_text("cosine")
    ('1', 'cosine')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)
