"""Simple cron expressions in words. Pure.

Other expressions have no words, as none are better than wrong ones. See ``app.tenants.cron`` for
what an expression means.
"""

from __future__ import annotations

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def cron_words(cron: str) -> str:
    """The expression in words; empty if it is not simple."""
    fields = cron.upper().split()
    if len(fields) != 5 or fields[3] != "*":
        return ""
    minute, hour, day, _, weekday = fields
    if hour == day == weekday == "*":
        return within_hour(minute)
    if not (minute.isdecimal() and hour.isdecimal()):
        return every_hours(minute, hour) if day == weekday == "*" else ""
    days = day_words(day, weekday)
    return f"{days} at {int(hour):02}:{int(minute):02}" if days else ""


def within_hour(minute: str) -> str:
    """Several times an hour, or once."""
    if minute == "*":
        return "every minute"
    if minute.isdecimal():
        return f"every hour at {int(minute)} past" if int(minute) else "every hour"
    step = minute.removeprefix("*/")
    if step != minute and step.isdecimal() and int(step) and 60 % int(step) == 0:
        return "every minute" if int(step) == 1 else f"every {int(step)} minutes"
    return ""


def every_hours(minute: str, hour: str) -> str:
    """Every few hours, at a minute."""
    step = hour.removeprefix("*/")
    if not minute.isdecimal() or step == hour or not step.isdecimal() or not int(step):
        return ""
    if 24 % int(step) or int(step) == 1:
        return ""
    past = f" at {int(minute)} past" if int(minute) else ""
    return f"every {int(step)} hours{past}"


def day_words(day: str, weekday: str) -> str:
    """Which days; empty if both fields narrow them."""
    if weekday == "*":
        if day == "*":
            return "every day"
        if day == "L":
            return "on the last day of every month"
        return f"on day {int(day)} of every month" if day.isdecimal() else ""
    if day != "*":
        return ""
    if weekday in ("1-5", "MON-FRI"):
        return "Monday to Friday"
    if weekday in DAY_NAMES:
        return f"every {DAYS[DAY_NAMES.index(weekday)]}"
    return f"every {DAYS[int(weekday)]}" if weekday.isdecimal() and int(weekday) <= 7 else ""
