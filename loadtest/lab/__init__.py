"""The load lab: experiments that show how Fairline behaves under load, as pictures with numbers.

Each starts its own services and leaves CSV, pictures and a report in ``loadtest/results/<name>/``.
"""
