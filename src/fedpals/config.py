"""A configuration from its keys, with errors in the words of this package."""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, model_validator

from fedpals.errors import InputError

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """A part of a configuration: frozen, every key known, every docstring the key's help (`key_help`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        """Refuse true where a number belongs; it would count as 1."""
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, bool) and key in cls.model_fields and cls.model_fields[key].annotation is not bool:
                raise InputError(f"{key} is {str(value).lower()}; it is not a yes or no: give a number or text")
        return values

    def keys(self) -> dict[str, Any]:
        """Return the keys that have a value."""
        return self.model_dump(exclude_none=True)


def key_help(model: type[BaseModel], key: str) -> str:
    """Return the help of a key: its description, or else the docstring below it.

    Pydantic could read the docstrings, but would do so for every model, and looks through all loaded modules for the
    source: a tenth of a second whenever a command starts.
    """
    return model.model_fields[key].description or _docstrings(model.__module__).get((model.__name__, key), "")


@cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """Return the docstrings of the attributes of a module's classes, by class and attribute."""
    found = {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for model in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for pair in itertools.pairwise(model.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[model.name, key] = inspect.cleandoc(text)
    return found


def unset(meaning: str) -> dict[str, JsonValue]:
    """Say in words what holds where a key is left out, for ``Field(default=None, json_schema_extra=…)``."""
    return {"unset": meaning}


def hidden() -> dict[str, JsonValue]:
    """Mark a key that is written by the program, and is no flag."""
    return {"hidden": True}


def validated(model: type[Model], keys: Mapping[str, Any]) -> Model:
    """Build a model from its keys.

    Raises
    ------
    InputError
        A line for every key that is unknown, missing or has a value that it must not have: the key,
        the value, and what would do.
    """
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        complaints = error.errors(include_url=False)
    raise InputError("\n".join(_sentences(model, complaints)))


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Return values as TOML, in the given order: text, numbers, lists and tables of them."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{json.dumps(str(k), ensure_ascii=False)} = {_toml(v)}" for k, v in value.items()) + " }"
        )
    return json.dumps(value, ensure_ascii=False)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word nearest to a mistyped one; nothing where none is near.

    >>> did_you_mean("digitz", ["digits", "cifar10"])
    "; did you mean 'digits'?"
    >>> did_you_mean("imagenet", ["digits", "cifar10"])
    ''
    """
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _sentences(model: type[BaseModel], complaints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for every complaint; one for all alternatives of a value that may be a number or a word."""
    alternatives: dict[str, list[Mapping[str, Any]]] = {}
    for complaint in complaints:
        key = str(complaint["loc"][0]) if complaint["loc"] else ""
        info = model.model_fields.get(key)
        if len(complaint["loc"]) == 2 and info is not None and get_origin(info.annotation) in (Union, UnionType):
            alternatives.setdefault(key, []).append(complaint)
        else:
            yield _sentence(model, complaint)
    for key, group in alternatives.items():
        yield f"{key} is {group[0]['input']!r}; it must be {', or '.join(_needed(c['msg']) for c in group)}"


def _sentence(model: type[BaseModel], complaint: Mapping[str, Any]) -> str:
    location, kind, message = complaint["loc"], complaint["type"], complaint["msg"]
    key = ".".join(map(str, location))
    if kind == "value_error":
        # Raised by a validator of ours, which names its key itself.
        return str(complaint["ctx"]["error"])
    if kind == "extra_forbidden":
        keys = _keys(model, location[:-1])
        remedy = f"; the keys are {', '.join(keys)}" if keys else "; remove it"
        return f"{key!r} is not a known key{did_you_mean(str(location[-1]), keys) or remedy}"
    if kind == "too_short":
        return f"{key} is {complaint['input']!r}; give at least {complaint['ctx']['min_length']}"
    if kind == "missing":
        return f"the key {key!r} is missing; add it"
    return f"{key or 'the configuration'} is {complaint['input']!r}; it must be {_needed(message)}"


def _needed(message: str) -> str:
    """Return what a value must be, from pydantic's sentence."""
    return message.removeprefix("Input should be ").partition(", unable to parse")[0]


def _keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """List the keys of the model that lies at ``location`` in this one; none where it lies in a list or union."""
    for key in location:
        inner = model.model_fields[str(key)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def source_digest(thing: Any) -> str:
    """Return eight digits of the source of a user's class or function: when it changes, so does what it computes.

    Where there is no source, as for something typed into an interpreter, its compiled form stands for it.
    """
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None) or [v.__code__ for v in vars(thing).values() if inspect.isfunction(v)]
        text = repr([(c.co_code, c.co_names, c.co_consts) for c in (code if isinstance(code, list) else [code])])
    return hashlib.sha256(text.encode()).hexdigest()[:8]
