"""Time per round, ours beside every peer's."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fedpals.simulation.run import Run
from simulation_rounds.peers.flower_rounds import flower_rounds
from simulation_rounds.peers.installed import installed
from simulation_rounds.peers.pfl_research import pfl_research
from simulation_rounds.peers.plain_loop import plain_loop, plain_loop_pooling_first
from simulation_rounds.processes import in_child
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size
from simulation_rounds.timing import RoundPair


@dataclass(frozen=True)
class Contender:
    """A peer whose rounds are compared with ours."""

    name: str
    measure: Callable[[Run], list[RoundPair]]
    modules: tuple[str, ...] = ()
    """What must be installed."""
    wanted: float | None = None
    """Its time by ours, at least."""
    starts_processes: bool = False
    """Whether it computes in processes of its own, so that it needs no child."""


CONTENDERS = (
    Contender("plain loop", plain_loop, wanted=8.0),
    Contender("plain loop, our layers", plain_loop_pooling_first),
    Contender("pfl", pfl_research, ("pfl",), 8.0),
    Contender("Flower + Ray", flower_rounds, ("flwr", "ray"), 9.0, starts_processes=True),
)


def measure_rounds(size: Size, report: Report) -> None:
    print(f"\nrounds: 9 clients × {size.samples} samples, batch {size.batch}, {size.rounds} rounds")
    run = size.run()
    figures = report.results.setdefault("rounds", {})
    for contender in CONTENDERS:
        if contender.wanted is None and not size.untargeted:
            continue
        name = contender.name
        print(f"  {name}")
        if not installed(*contender.modules):
            figures[name] = "not installed"
            continue
        try:
            measure = contender.measure
            pairs = (measure(run) if contender.starts_processes else in_child(measure, run))[1:]
        except RuntimeError as error:
            print(f"    failed: {error}")
            figures[name] = "failed"
            continue
        ratio = statistics.median(pair.theirs[0] / pair.ours[0] for pair in pairs)
        whole = statistics.median(sum(pair.theirs) / sum(pair.ours) for pair in pairs)
        theirs = statistics.median(pair.theirs[0] for pair in pairs)
        ours = statistics.median(pair.ours[0] for pair in pairs)
        print(f"    {theirs:.3f} s, ours {ours:.3f} s: ratio {ratio:.2f}; with evaluation {whole:.2f}")
        figures[name] = {"ratio": ratio, "with_evaluation": whole, "rows": [asdict(pair) for pair in pairs]}
        if contender.wanted is not None:
            report.add_target(f"round: {name} / ours", ratio, "≥", contender.wanted)
