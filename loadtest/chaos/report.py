"""What the judge found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What the judge found; every list of faults is empty if all is well."""

    #: Not faults: how much there was of everything.
    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.faults.values())

    def __str__(self) -> str:
        lines = [", ".join(f"{count} {name}" for name, count in self.figures.items())]
        for name, found in self.faults.items():
            if found:
                lines.append(f"{name}: {len(found)}, such as {'; '.join(found[:5])}")
        return "\n".join(lines)
