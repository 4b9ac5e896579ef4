"""The figures, and which of them meet their targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Target:
    """A figure, and what it must be."""

    name: str
    value: float
    relation: Literal["≥", "≤"]
    wanted: float

    @property
    def met(self) -> bool:
        """Whether the figure is as wanted."""
        return self.value >= self.wanted if self.relation == "≥" else self.value <= self.wanted

    def to_json(self) -> dict[str, Any]:
        """Return the target as it is written."""
        return {"name": self.name, "value": self.value, "wanted": f"{self.relation} {self.wanted}", "met": self.met}

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        return f"{self.name:54s} {self.relation} {self.wanted:5.2f}  {self.value:6.2f}  {verdict}"


@dataclass
class Report:
    """The figures of all measures, and their targets."""

    results: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)

    def add_target(self, name: str, value: float, relation: Literal["≥", "≤"], wanted: float) -> None:
        """Note a figure that must be ``relation`` ``wanted``."""
        self.targets.append(Target(name, value, relation, wanted))

    def print_targets(self) -> None:
        """Print which targets are met."""
        print("\ntarget" + " " * 50 + "wanted   found")
        for target in self.targets:
            print(target)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as they are written."""
        return {**self.results, "targets": [target.to_json() for target in self.targets]}
