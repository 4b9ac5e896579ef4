"""Self-contained pages: style, script and data are inside, and nothing else can load or run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpals.errors import InputError, MissingExtraError

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """Return a page with all values escaped, and with these scripts of ours, whose hash allows no other."""
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _environment().get_template(template)
    style = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    return str(page.render(**values, style=style, script=script, digest=digest))


def check_page(path: Path) -> None:
    """Raise `InputError` if a page cannot be written to this file."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"{path}: a page is written as .html; change the file's ending")
    _environment()


def _environment() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("writing a page", "plots") from None
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["together"] = together
    return environment


def together(text: str) -> str:
    r"""Let no line end within a number and what belongs to it.

    >>> together("Best: C = 3, 4.8 ± 1.8 %")
    'Best: C\xa0=\xa03, 4.8\xa0±\xa01.8\xa0%'
    """
    return re.sub(" ([=±≤≥→]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text).replace(" %", "\N{NO-BREAK SPACE}%")
