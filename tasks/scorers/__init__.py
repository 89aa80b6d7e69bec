"""Scorers of applications: their protocol, a simulation and Claude."""
