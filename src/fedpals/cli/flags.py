"""The keys of a run as flags: the typed configuration is the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer

from fedpals.methods import METHODS
from fedpals.simulation.run import RunKey, run_keys

DATA, FEDERATION, METHOD, TRAINING, PROTECTION, EVALUATION, OUTPUT = (
    "Data",
    "Federation",
    "Method",
    "Training",
    "Privacy and dishonest clients",
    "Evaluation",
    "Computing and output",
)
DataFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Folder to search for data first.", show_default="$FEDPALS_DATA, then the cache", rich_help_panel=DATA
    ),
]
Device: TypeAlias = Annotated[str, typer.Option(help="cpu, or cuda if available.", rich_help_panel=OUTPUT)]
Resume: TypeAlias = Annotated[
    bool, typer.Option(help="Continue unfinished runs, or start them over.", rich_help_panel=OUTPUT)
]
CheckpointEvery: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Rounds between checkpoints.", rich_help_panel=OUTPUT)
]
_PANELS = {
    "task": DATA,
    "image_size": DATA,
    "client_key": DATA,
    "client_column": DATA,
    "label_column": DATA,
    "scale": DATA,
    "impute": DATA,
    "test_samples": EVALUATION,
    "validation_samples": EVALUATION,
    "held_out": EVALUATION,
    "seed": TRAINING,
}
"""Panels of keys that are not in the panel of their part of the run."""
_PANEL_OF_PART = {
    "Task": FEDERATION,
    "MethodName": METHOD,
    "options": METHOD,
    "Network": TRAINING,
    "Plan": TRAINING,
    "ServerPlan": TRAINING,
    "Protection": PROTECTION,
    "Knowledge": FEDERATION,
    "Seed": TRAINING,
}
_ORDER = (DATA, FEDERATION, METHOD, TRAINING, PROTECTION, EVALUATION)


def run_flags() -> list[inspect.Parameter]:
    """Return a command-line option for every key of a run, panel by panel."""
    keys = [key for key in run_keys() if not _extra(key).get("hidden")]
    return [_flag(key) for key in sorted(keys, key=lambda key: _ORDER.index(_panel(key)))]


def _panel(key: RunKey) -> str:
    return _PANELS.get(key.name) or _PANEL_OF_PART[key.part]


def _flag(key: RunKey) -> inspect.Parameter:
    unset = _extra(key).get("unset", False)
    default = unset if key.info.default is None else key.info.default
    option = typer.Option(
        f"--{key.name.replace('_', '-')}",
        help=key.help.replace("METHODS", ", ".join(METHODS)),
        show_default=str(default) if default is not False else False,
        rich_help_panel=_panel(key),
    )
    annotation: Any = Annotated[_plain(key.kind) | None, option]
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _extra(key: RunKey) -> Mapping[str, Any]:
    extra = key.info.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def _plain(kind: Any) -> Any:
    """Return what the command line parses: whole numbers, numbers, or text, which the run then checks."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    has_words = any(get_origin(k) is Literal for k in kinds)
    return str if has_words else next((k for k in kinds if k in (int, float)), str)


def with_run_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace ``**flags`` in a command's signature by an option for every key of a run."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    own = [own[0], *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own[1:])]
    parameters = [*own[:1], *run_flags(), *own[1:]]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command
