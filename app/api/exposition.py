"""The Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

#: Labels and a value.
Sample = tuple[tuple[tuple[str, str], ...], float]


def by(label: str, values: Mapping[str, float]) -> Iterator[Sample]:
    """Samples that differ in one label."""
    for name, value in values.items():
        yield ((label, name),), value


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """One metric in the Prometheus text format."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
        labelled = f"{name}{{{inside}}}" if inside else name
        lines.append(f"{labelled} {int(value) if value == int(value) else value}")
    return lines


def escape(text: str) -> str:
    """A label value as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
