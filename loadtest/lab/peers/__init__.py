"""Fairline and its peers in one run: plain Celery, Dramatiq, Procrastinate."""

from loadtest.lab.peers.experiment import Peers

EXPERIMENT = Peers()
