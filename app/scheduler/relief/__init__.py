"""Dispatching by an API process while no scheduler leads."""
