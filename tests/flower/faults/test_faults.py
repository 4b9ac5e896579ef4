"""All faults inside this process, and a few of real ones; `python -m tests.flower.faults` tries the rest."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.flower.faults import content, deployed, nodes, privacy, processes, servers
from tests.flower.faults.harness import Fault

IN_PROCESS = list(chain(content.faults(), nodes.faults(), servers.faults(), privacy.faults()))
OF_PROCESSES = {
    "flower up gets SIGHUP while SuperLink starts",
    "flower up gets SIGKILL while a key is registered",
    "flower up gets three SIGINT",
    "flower up gets SIGINT, ignored at its start",
}
IN_A_DEPLOYMENT = {"deployed: update × −50", "deployed: header of 10¹¹ floats"}


@pytest.mark.parametrize("fault", IN_PROCESS, ids=lambda fault: fault.name)
def test_messages_nodes_and_servers(fault: Fault) -> None:
    outcome, _ = fault.try_once()
    assert outcome.verdict in fault.wanted, outcome.evidence


def test_there_are_many_and_each_has_its_own_name() -> None:
    names = [fault.name for fault in [*IN_PROCESS, *deployed.faults(), *processes.faults()]]
    assert len(names) == len(set(names)) >= 100
    assert set(names) >= OF_PROCESSES | IN_A_DEPLOYMENT
    assert len([*deployed.faults(), *processes.faults()]) >= 40


@pytest.mark.parametrize(
    "fault", [fault for fault in deployed.faults() if fault.name in IN_A_DEPLOYMENT], ids=lambda fault: fault.name
)
def test_clients_of_a_deployment(fault: Fault) -> None:
    outcome, _ = fault.try_once()
    assert outcome.verdict in fault.wanted, outcome.evidence


@pytest.mark.parametrize(
    "fault", [fault for fault in processes.faults() if fault.name in OF_PROCESSES], ids=lambda fault: fault.name
)
def test_processes(fault: Fault) -> None:
    outcome, _ = fault.try_once()
    assert outcome.verdict in fault.wanted, outcome.evidence
