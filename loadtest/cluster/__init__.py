"""``make cluster``: three machines, in namespaces of this one, that run Fairline on real clusters.

Each has a network, process ids, mounts and a host name of its own, and runs etcd, Patroni with
PostgreSQL, RabbitMQ, two API processes, a scheduler and a worker of each pool. HAProxy is in front
of them. The network of this machine is not touched, apart from the port that HAProxy listens on.
"""
