# Becomes the server, which reads its user and password from the environment by itself.
set -eu
chown -R rabbitmq: /var/lib/rabbitmq
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$@"
