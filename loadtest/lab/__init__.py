"""The load lab: experiments that show how Fairline behaves under load, as pictures with numbers.

``make lab`` runs all of them, ``make lab-knee`` one, ``QUICK=1`` in minutes. Each starts its own
services, drives them with locust, reads gauges once per second, and leaves CSV, pictures and a
report in ``loadtest/results/<name>/``.
"""
