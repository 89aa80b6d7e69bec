"""``/metrics`` of a process that serves several cells: what each reports, with the label ``cell``.

What an instance says of itself is the same from every cell and is reported once. Whether a cell
reports its system to this instance, and how far its standby is behind, differs from cell to cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import Response

from app.api.metric_names import CELL_METRICS, OF_PROCESS
from app.api.routes.metrics import CONTENT_TYPE
from app.cells.fan_out import ServedApps, ask

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: The name of a sample, and its labels if it has any.
SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{?)(.*)", re.DOTALL)


def answer_metrics(
    apps: ServedApps, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """The metrics of all cells that respond, and which do."""
    names = apps.cell_names()
    answers = ask(apps, names, environ, lambda cell: {"REQUEST_METHOD": "GET"})
    pages = {}
    for cell in names:
        one = answers.get(cell)
        if one is not None and one.status == HTTPStatus.OK:
            pages[cell] = one.body.decode()
        elif one is not None and not one.away:
            return one(environ, start_response)  # a wrong parameter
    page = merge_expositions(pages) + reachable(names, pages)
    return Response(page, content_type=CONTENT_TYPE)(environ, start_response)


def merge_expositions(pages: Mapping[str, str]) -> str:
    """One page of several: each metric once, with the samples of all cells."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for cell, page in pages.items():
        name = ""
        for line in page.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_new = name not in heads
                heads.setdefault(name, [])
                samples.setdefault(name, [])
            if line.startswith("#"):
                heads[name] += [line] if is_new else []
            elif name not in OF_PROCESS:
                samples[name].append(labelled(line, cell))
            elif is_new:
                samples[name].append(line)
    lines = [line for name, head in heads.items() for line in (*head, *samples[name])]
    return "".join(f"{line}\n" for line in lines)


def labelled(sample: str, cell: str) -> str:
    """A sample with the label ``cell``."""
    found = SAMPLE.fullmatch(sample)
    assert found is not None
    name, labels, rest = found.groups()
    return f'{name}{{cell="{cell}",{rest}' if labels else f'{name}{{cell="{cell}"}}{rest}'


def reachable(names: Sequence[str], pages: Mapping[str, str]) -> str:
    """The metrics about cells themselves."""
    [(name, text)] = CELL_METRICS.items()
    name = name.partition("{")[0]
    samples = [f'{name}{{cell="{cell}"}} {int(cell in pages)}.0' for cell in names]
    return "".join(
        f"{line}\n" for line in (f"# HELP {name} {text}", f"# TYPE {name} gauge", *samples)
    )
