"""The trace that a job belongs to, as its row keeps it: W3C's ``traceparent``, and after a blank
its ``tracestate``, if there is one."""

from __future__ import annotations

#: What every system has to hand on; of a longer state the last entries are left out.
MOST_STATE = 512


def kept_context(traceparent: str | None, tracestate: str | None = None) -> str | None:
    """The headers as one text."""
    state = tracestate or ""
    if len(state) > MOST_STATE:
        state = state[: MOST_STATE + 1].rpartition(",")[0]
    return f"{traceparent} {state}".rstrip() if traceparent else None


def trace_headers(kept: str | None) -> dict[str, str]:
    """The text as headers again; none without a trace."""
    traceparent, _, tracestate = (kept or "").partition(" ")
    found = {"traceparent": traceparent, "tracestate": tracestate}
    return {name: value for name, value in found.items() if value}
