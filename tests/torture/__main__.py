"""Tries every case and prints the tally."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.torture.cases import all_cases
from tests.torture.harness import Verdict, attempt, import_everything


def main() -> int:
    """Print what was not answered perfectly, and the tally; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="try only cases whose name begins with this")
    only = parser.parse_args().only
    tally: Counter[Verdict] = Counter()
    import_everything()
    with tempfile.TemporaryDirectory(prefix="torture-run-") as folder:
        for case in all_cases(Path(folder)):
            if not case.name.startswith(only):
                continue
            outcome = attempt(case)
            tally[outcome.verdict] += 1
            if outcome.verdict is not Verdict.PERFECT:
                print(f"{outcome.verdict}: {case.name}: fedpals {' '.join(case.arguments)}")
                print(f"    code {outcome.code} for {case.code}, words {case.words}")
                print("    " + "\n    ".join(outcome.output.splitlines()[-6:]))
    print(f"tried {tally.total()}, " + ", ".join(f"{verdict} {tally[verdict]}" for verdict in Verdict))
    return int(tally[Verdict.PERFECT] < tally.total())


if __name__ == "__main__":
    sys.exit(main())
