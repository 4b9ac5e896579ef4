"""Signals that ask to stop, and those that do not."""

from __future__ import annotations

import signal
import threading

import pytest

from fedpals.simulation.signals import STOPPING, stop_on_signals


@pytest.mark.parametrize("number", STOPPING)
def test_every_signal_to_stop_is_heard_once_and_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(s) for s in STOPPING]
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        assert stop.signal is number
        signal.raise_signal(signal.SIGTERM)  # again, as schedulers do: it is stopping already
        assert stop.signal is number
    assert [signal.getsignal(s) for s in STOPPING] == before


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_is_set() -> None:
    answers = []

    def work() -> None:
        with stop_on_signals() as stop:
            answers.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
