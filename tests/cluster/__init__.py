"""``make cluster-test``: a cluster of three machines in namespaces. Not part of ``make test``."""
