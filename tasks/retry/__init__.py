"""PURE: retry policy: what a failure means for its job, and what many mean for a type or tenant.

Constants of one policy stay in its module (``circuit.PROBES``, ``budget.WINDOW_SECONDS``), since
several have the same name.
"""
