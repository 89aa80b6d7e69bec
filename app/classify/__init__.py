"""How long job types run, and the pool that follows from it.

:mod:`~app.classify.rules` and :mod:`~app.classify.histogram` are pure; the scheduler's
Classifier feeds them, and :mod:`~app.classify.estimates` tells the dispatcher.
"""
