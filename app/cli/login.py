"""The login of the processes: ``migrate`` makes it where the owner of the tables has another one.

It owns nothing, is no superuser, and may do nothing but take on the roles of
:mod:`models.store.roles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.store.errors import StateStoreUnavailable
from models.store.roles import DatabaseRole
from models.store.session import connect, open_engine, transaction

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from models.settings import DatabaseSettings

#: What is missing: the login, or roles that it may not take on.
READ_MISSING = """
    SELECT to_regrole(quote_ident(%(login)s)) IS NULL AS login,
           array(SELECT role FROM unnest(%(roles)s::text[]) AS role
                 WHERE to_regrole(quote_ident(%(login)s)) IS NULL
                    OR NOT pg_has_role(%(login)s, role, 'MEMBER')) AS roles,
           quote_ident(%(login)s) AS name,
           EXISTS (SELECT FROM pg_roles WHERE rolname = %(login)s
                   AND NOT rolinherit AND NOT rolsuper AND NOT rolcreaterole) AS as_made_here
"""


def owner_database() -> Engine:
    """The database, as the owner of the tables."""
    from app.config import settings

    given = settings()
    return open_engine(
        given.model_copy(update={"database_url": given.migrations_url}), process="cli"
    )


def keep_login(engine: Engine, settings: DatabaseSettings) -> None:
    """Make the login of the settings unless it is there; let it take on the roles.

    It gets the password of its URL: also later, if that is refused and the login is as made here.
    """
    from psycopg2.extensions import encrypt_password, quote_ident
    from sqlalchemy import make_url

    url = make_url(settings.database_url)
    if url.username is None or url.username == engine.url.username:
        return
    refused = url.password is not None and is_refused(settings)
    with transaction(engine) as connection:
        asked = {"login": url.username, "roles": list(DatabaseRole)}
        missing = connection.exec_driver_sql(READ_MISSING, asked).one()
        driver = connection.connection.driver_connection
        password = ""
        if url.password is not None:
            # Not readable in the server's log.
            word = encrypt_password(str(url.password), url.username, driver, "scram-sha-256")
            password = f" PASSWORD '{word}'"
        if missing.login:
            connection.exec_driver_sql(f"CREATE ROLE {missing.name} LOGIN NOINHERIT{password}")
        elif refused and missing.as_made_here:  # others may have other users
            connection.exec_driver_sql(f"ALTER ROLE {missing.name}{password}")
        for role in missing.roles:
            connection.exec_driver_sql(f"GRANT {quote_ident(role, driver)} TO {missing.name}")


def is_refused(settings: DatabaseSettings) -> bool:
    """Whether the server refuses the password of the URL."""
    engine = open_engine(settings, process="cli")
    try:
        with connect(engine):
            return False
    except StateStoreUnavailable as error:
        return "password authentication failed" in str(error)
    finally:
        engine.dispose()
