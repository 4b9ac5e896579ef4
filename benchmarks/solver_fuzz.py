"""The solver on thousands of random problems of kinds that were hard once, checked in high precision.

    python benchmarks/solver_fuzz.py [--only WORD] [--share 0.1] [--compare 20]

Prints for each family how many problems were tried, how many the solver refused, how many answers were wrong, how many
ended in an exception that is not documented, and the times of a solve. Every answer is checked as far as float64
allows; the first ``--compare`` of a family are compared with the optimum in 500 bits, which
`tests/weights/reference.py` computes on its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import fedpals

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.weights.check import Verdict, answer_to, check
from tests.weights.families import FAMILIES, Family

_MAX_ENTRIES = 300_000
"""M·K up to which an answer is compared in high precision."""


def fuzz(family: Family, tries: int, compare: int, first: int) -> None:
    verdicts: Counter[Verdict] = Counter()
    seconds, compared, notes = [], 0, []
    for seed in range(first, first + tries):
        member = family.make(seed)
        start = time.process_time()
        answer = answer_to(member)
        seconds.append(time.process_time() - start)
        in_high_precision = compared < compare and np.prod(member.counts.shape) <= _MAX_ENTRIES
        verdict, reason = check(member, answer, in_high_precision=in_high_precision)
        compared += in_high_precision and isinstance(answer, fedpals.Weights)
        verdicts[verdict] += 1
        if verdict is not Verdict.RIGHT:
            notes.append(f"    {seed}: {verdict.name.lower()}: {reason}")
    print(
        f"{family.name:46s} tried {tries:5d}  refused {verdicts[Verdict.REFUSED]:4d}  "
        f"wrong {verdicts[Verdict.WRONG]:3d} (of {compared:4d} compared in 500 bits)  "
        f"exceptions {verdicts[Verdict.FAILED]:3d}  "
        f"median {np.median(seconds) * 1e3:7.1f} ms, longest {max(seconds):6.2f} s",
        flush=True,
    )
    print("\n".join(notes[:10]) + "\n" if notes else "", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families with this in their name")
    parser.add_argument("--share", type=float, default=1.0, help="share of the problems of each family")
    parser.add_argument("--compare", type=int, default=20, help="answers per family compared in 500 bits")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    options = parser.parse_args()
    print(f"fedpals {fedpals.__version__} in {Path(fedpals.__file__).parent}")
    for family in FAMILIES:
        if options.only in family.name:
            fuzz(family, max(1, round(options.share * family.tries)), options.compare, options.first)


if __name__ == "__main__":
    main()
