"""gunicorn for the baseline: the numbers of Fairline's own, with gunicorn's own green worker."""

workers = 2
worker_class = "gevent"
worker_connections = 10_000
backlog = 4096
keepalive = 75
accesslog = None
loglevel = "warning"
worker_tmp_dir = "/dev/shm"
