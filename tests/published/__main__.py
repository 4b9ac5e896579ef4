"""Write the tables of the READMEs from the stored results: `make results`."""

from __future__ import annotations

from tests.published.blocks import FILES, rebuilt

for path in FILES:
    text = path.read_text(encoding="utf-8")
    if (new := rebuilt(text)) != text:
        path.write_text(new, encoding="utf-8")
        print(f"{path}: written")
