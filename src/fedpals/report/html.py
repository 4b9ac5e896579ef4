"""Self-contained pages: style, script and data are inside, and nothing else can load or run."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from fedpals.errors import InputError, MissingExtraError

_TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("explorer.js", "page.js")


def render(template: str, **values: Any) -> str:
    """Return a page with all values escaped."""
    return str(_environment().get_template(template).render(**values, **_inline_values()))


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
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _inline_values() -> dict[str, str]:
    """Return style sheet and script, and the hash of the script, so that the page allows no other script."""
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": (_TEMPLATES / "page.css").read_text(encoding="utf-8"), "script": script, "digest": digest}
