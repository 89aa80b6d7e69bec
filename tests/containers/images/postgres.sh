# Creates a database in an empty volume, then becomes the server. RabbitMQ does the like by itself.
set -eu
as_postgres='setpriv --reuid=postgres --regid=postgres --init-groups'
password=$($as_postgres cat "$POSTGRES_PASSWORD_FILE")
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    printf '%s' "$password" >/tmp/password
    chmod 644 /tmp/password
    $as_postgres initdb --username="$POSTGRES_USER" --pwfile=/tmp/password \
        --auth-local=trust --auth-host=scram-sha-256
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | $as_postgres postgres --single postgres
fi
exec $as_postgres "$@"
