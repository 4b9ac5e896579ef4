"""Faults by the dozen: processes that die, messages that lie, nodes that are silent; each must end well or be named.

``python -m tests.flower.faults`` tries all of them, against real processes where the fault is one of processes, and
prints a table and how many gave a wrong result in silence, left something behind, or waited without bound.
"""
