"""Measurements of Fairline under load, each a command: ``python -m loadtest.bench`` and others.

Everything runs on this machine's loopback interface against private services in a temporary
folder, bounded in count and time, and nothing is left behind but a report in ``results/``.
"""
