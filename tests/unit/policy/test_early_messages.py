"""Properties of early messages: only after a streak of the pool itself, never after a miss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.policy.early_messages import STREAK, EarlyMessages


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([True, False, None]))))
def test_a_pool_is_allowed_exactly_while_its_last_groups_were_all_express(
    groups: list[tuple[str, bool | None]],
) -> None:
    early = EarlyMessages()
    history: dict[str, list[bool]] = {"a": [], "b": []}
    for pool, all_express in groups:
        if all_express is None:
            early.forget()
            history = {"a": [], "b": []}
        else:
            early.note(pool, all_express=all_express)
            history[pool].append(all_express)
        for name, seen in history.items():
            assert early.allowed(name) == (len(seen) >= STREAK and all(seen[-STREAK:]))
