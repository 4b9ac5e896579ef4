"""A user's own rules and weightings: objects in the place of names, and names for them."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from fedpals.config import did_you_mean, source_digest
from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.rule import ClientRule
from fedpals.methods.weighting import Weighting

if TYPE_CHECKING:
    from torch import Tensor

_PACKAGE = __name__.partition(".")[0]


def own_source(*parts: ClientRule | Weighting) -> str | None:
    """Return digits of the source of those parts that are not this package's; None where all are."""
    own = [type(part) for part in parts if not type(part).__module__.startswith(f"{_PACKAGE}.")]
    return "-".join(source_digest(cls) for cls in own) or None


def own_name(part: ClientRule | Weighting) -> str:
    """Return what a user's object is called: its ``name``, or its class in small letters."""
    base = ClientRule if isinstance(part, ClientRule) else Weighting
    name = type(part).name
    return name if name != base.name else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(part).__name__).lower()


def own_options(*parts: ClientRule | Weighting) -> dict[str, Any]:
    """Return the values that set objects apart from others of their class."""
    return {key: value for part in parts if is_dataclass(part) for key, value in asdict(part).items()}


def check_part(part: Any) -> None:
    """Refuse what is neither rule nor weighting, and hooks that cannot be called as they will be."""
    if inspect.isclass(part):
        raise InputError(f"method is the class {part.__name__}; give an object of it, {part.__name__}()")
    if not isinstance(part, ClientRule | Weighting):
        raise InputError(
            f"method is {part!r}; give a name, or an object of a subclass of fedpals.ClientRule or fedpals.Weighting"
        )
    base: type[Any] = ClientRule if isinstance(part, ClientRule) else Weighting
    hooks = {name: hook for name, hook in vars(base).items() if inspect.isfunction(hook) and not name.startswith("_")}
    for name, function in inspect.getmembers(type(part), inspect.isfunction):
        if name.startswith("_") or function.__module__.startswith(f"{_PACKAGE}."):
            continue
        where = f"{type(part).__name__}.{name}"
        if name not in hooks:
            if hint := did_you_mean(name, hooks):
                raise InputError(f"{where} is no hook of {base.__name__}{hint}")
            continue
        wanted = inspect.signature(hooks[name])
        try:
            inspect.signature(function).bind(*wanted.parameters)
        except TypeError as error:
            raise InputError(f"{where} cannot be called ({error}); its arguments must be {wanted}") from None


@dataclass(frozen=True)
class UnavailableRule(ClientRule):
    """The client rule of a method that was given in Python, in a record that is only read."""

    method: str = ""

    def learned_prior(self, mix: Vector) -> Vector:
        """Refuse."""
        del mix
        raise _unavailable(self.method)

    def correction(self, server: Tensor | None, client: Tensor | None, like: Tensor) -> Tensor | None:
        """Refuse."""
        del server, client, like
        raise _unavailable(self.method)


@dataclass(frozen=True)
class UnavailableWeighting(Weighting):
    """The weighting of a method that was given in Python, in a record that is only read."""

    method: str = ""

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Refuse."""
        del counts, target, participants, state
        raise _unavailable(self.method)


def _unavailable(method: str) -> InputError:
    return InputError(f"the method {method!r} was given in Python; register it with fedpals.register to use it again")
