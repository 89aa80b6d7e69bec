"""Which variables of the user's environment each process of a stack gets.

Workers get all of them: jobs are the user's own code. The API, the scheduler and Flower get no keys
of the model, which only workers call. PostgreSQL and RabbitMQ get what any program needs.
"""

from __future__ import annotations

from app.stack.leftovers import STACK_VARIABLE

#: Keys of the model.
MODEL_KEYS = frozenset({"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "FAIRLINE_CLAUDE_API_KEY"})
#: What any program may need, and the mark by which processes of a stack are found.
BASIC = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        STACK_VARIABLE,
    }
)
#: Locale, loader, a faked clock, Erlang.
BASIC_PREFIXES = ("LC_", "LD_", "FAKETIME", "ERL_")


def without_model_keys(name: str) -> bool:
    """For processes of Fairline that run no jobs."""
    return name not in MODEL_KEYS


def basic(name: str) -> bool:
    """For programs that are not Fairline's."""
    return name in BASIC or name.startswith(BASIC_PREFIXES)
