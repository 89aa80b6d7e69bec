"""Tests of Fairline: unit, integration and acceptance, each in the order of the tree."""

from pathlib import Path

#: The repository.
ROOT = Path(__file__).parents[1]
