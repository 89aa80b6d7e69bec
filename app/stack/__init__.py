"""The embedded services and the process manager behind ``make up``.

Nothing in here is imported by the front door, the scheduler or the workers: they get their
database and broker from the environment, whoever started those.
"""
