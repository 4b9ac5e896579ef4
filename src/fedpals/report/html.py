"""Pages that need nothing but themselves: style, script and data are inside, and nothing else may load or run."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from fedpals.errors import InputError, MissingExtraError

_TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("explorer.js", "page.js")


def render(template: str, **values: Any) -> str:
    """Return a page, all of whose values are escaped."""
    return str(_environment().get_template(template).render(**values, **_inlined()))


def check_page(path: Path) -> None:
    """Refuse, before any work is done, a file that no page can be written to."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"{path}: a page is written as .html; change the file's ending")
    _environment()


def _environment() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("making a page", "plots") from None
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _inlined() -> dict[str, str]:
    """Return style sheet and script, and the script's hash by which the page allows it and no other."""
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": (_TEMPLATES / "page.css").read_text(encoding="utf-8"), "script": script, "digest": digest}
