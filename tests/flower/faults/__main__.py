"""Tries every fault and prints the table and the tally."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from itertools import chain

from flwr.supercore.task_identity import TaskIdentity

from tests.flower.faults import content, deployed, nodes, privacy, processes, servers
from tests.flower.faults.harness import Verdict


def main() -> int:
    """Print a row per fault, and the tally; return 1 if any fault ended in another way than wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.flower.faults", description=__doc__)
    parser.add_argument("only", nargs="*", default=[""], help="try only faults whose name contains one of these")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda code, _: sys.exit(128 + code))  # ends what the fault under way started
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)  # messages can only be made inside a run
    tally: Counter[Verdict] = Counter()
    unwanted = 0
    print("| fault | outcome | seen | seconds |\n|---|---|---|---|")
    for fault in chain(
        content.faults(),
        nodes.faults(),
        servers.faults(),
        privacy.faults(),
        deployed.faults(),
        processes.faults(arguments.seed),
    ):
        if not any(part in fault.name for part in arguments.only):
            continue
        outcome, seconds = fault.try_once()
        tally[outcome.verdict] += 1
        wanted = outcome.verdict in fault.wanted
        unwanted += not wanted
        verdict = outcome.verdict if wanted else f"**{outcome.verdict}** (wanted: {', '.join(fault.wanted)})"
        evidence = " ".join(outcome.evidence.split())
        print(f"| {fault.name} | {verdict} | {evidence[:240]} | {seconds:.1f} |", flush=True)
    print(f"\n{tally.total()} faults: " + ", ".join(f"{verdict} {tally[verdict]}" for verdict in Verdict))
    return int(unwanted > 0)


if __name__ == "__main__":
    sys.exit(main())
