"""Two billion jobs per day in virtual time, scheduled by the product's own policy objects.

Every cell is simulated second by second, those in which jobs wait in turns of the scheduler. Jobs
of one tenant and kind that arrive in the same step are one count, so nothing is drawn job by job
except what failed. ``docs/simulation.md``, which ``--docs`` writes, says what is the product's and
what is simplified.
"""
