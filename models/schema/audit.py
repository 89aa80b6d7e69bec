"""What operators and tenants did."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, text
from sqlalchemy.dialects.postgresql import JSONB

from models.schema.base import Base, Mapped, TextOrEmpty, index, mapped_column


class AuditRow(Base, table="audit_log"):
    """An act of an operator or a tenant that changed something; see ``models.audit``.

    A trigger refuses to change or delete rows, except by retention.
    """

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    #: ``api``, ``console`` or ``command line``.
    via: Mapped[str]
    #: The id of the key, or ``oidc:`` and the subject; ``console`` or ``anonymous`` without either;
    #: the user of the system.
    who: Mapped[str]
    #: The name of the key, or the verified e-mail address, at that time.
    who_name: Mapped[str | None]
    #: ``operator``, ``tenant``, or ``unknown`` of a request that was refused.
    role: Mapped[str]
    #: The name of the tenant concerned: it outlives the tenant.
    tenant: Mapped[str | None]
    #: One of ``models.audit.Act``.
    what: Mapped[str]
    target: Mapped[TextOrEmpty]
    #: The fields that changed, never secrets or personal data of candidates.
    before: Mapped[Any | None] = mapped_column(JSONB)
    after: Mapped[Any | None] = mapped_column(JSONB)
    address: Mapped[str | None]
    request_id: Mapped[str | None]

    __table_args__ = (
        index("audit_log_at", "at, id"),
        index("audit_log_tenant", "tenant, at, id"),
        index("audit_log_who", "who, at, id"),
        index("audit_log_what", "what, at, id"),
    )
