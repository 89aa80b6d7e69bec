# Becomes the server. Debian's own wrapper would start it below `su`, which SIGTERM does not pass.
set -eu
chown -R rabbitmq: /var/lib/rabbitmq
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$@"
