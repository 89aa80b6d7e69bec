"""The experiments, in the order in which they are run and reported."""

from __future__ import annotations

from importlib import import_module

from loadtest.lab.experiment import Experiment

#: Each is a module or package of this one, with its ``EXPERIMENT``.
NAMES = ("knee", "scaling", "pool", "swarm", "peers", "soak")


def experiment(name: str) -> Experiment:
    """The experiment of this name; what it needs is imported with it."""
    found: Experiment = import_module(f"loadtest.lab.{name}").EXPERIMENT
    return found
