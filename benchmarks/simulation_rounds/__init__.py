"""Rounds of training on one machine, ours and those of peers: what `benchmarks/simulator.py` measures.

Flower's processes and spawned children import from here by name: the folder benchmarks/ is on their path.
"""
