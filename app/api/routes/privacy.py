"""Personal data: ``/applications/{id}/export`` and ``/erase``, the latter for operators too."""

from __future__ import annotations

import time

import orjson
from flask import Blueprint, Response
from gevent import Timeout

from app.admission.intake import BLOB_SECONDS
from app.api.http.query import known_id
from app.api.http.reply import POLL_SECONDS, Reply, own_view
from app.api.http.state import note_waited, read_state, write_state
from app.api.http.turns import long_read
from app.api.openapi.declared import ASK_AFTER, Returns, for_operators, for_tenants
from app.api.schemas import answers
from app.api.services import current_services, current_tenant
from app.errors import BlobStoreUnavailable, ContentUnreadable, Erased, NotFound
from app.reads.export import MOST_BYTES, ApplicationExport, read_export
from app.tenants.ownership import own
from app.tenants.scopes import Scope
from models.audit import Act, record_first
from models.blobs import BlobError, BlobMissing
from models.encryption.values import decrypt_blob
from models.jobs.erase import request_erasure

privacy = Blueprint("privacy", __name__)

#: After so long no further blobs of copies are loaded for an export.
COPIES_SECONDS = BLOB_SECONDS / 2

DONE = Returns(200, answers.ErasedApplication)
GOING_ON = Returns(202, answers.ErasedApplication, (ASK_AFTER,))


@privacy.get("/applications/<application_id>/export")
@for_tenants(
    Scope.READ,
    "Everything that is stored of an application",
    Returns(200, answers.ExportedApplication),
    errors=(Erased, BlobStoreUnavailable, ContentUnreadable),
    acts=(Act.APPLICATION_EXPORT,),
)
@long_read
def get_export(application_id: str) -> Response:
    """The rows as they are, with the payload and the checkpoint also if they are in the blob
    store. Fields differ from version to version. Jobs that were submitted in its place may be
    many: the oldest 100, as long as their rows and blobs have no more than 8 MB each, are in
    `resubmitted`, the others in `more_resubmitted`. Takes their ids, too."""
    known, tenant_id = known_id(application_id), current_tenant().id
    with read_state() as connection:
        found = read_export(connection, known)
    if found is None:
        own_view(current_services().views.application(known), tenant_id)  # 410 if it was erased
    export = own(found, tenant_id)
    add_blobs(export)
    with write_state() as engine:
        record_first(engine, Act.APPLICATION_EXPORT, known, tenant=tenant_id)
    document = {"id": known, **export.document, "more_resubmitted": export.named_copies()}
    return Reply(document, 200, {"Cache-Control": "no-store"})


def add_blobs(export: ApplicationExport) -> None:
    """Put what the blob store holds into the document; null if it is no longer there.

    Copies whose blobs would be too much are left out.
    """
    blobs, loaded, began = current_services().blobs, 0, time.monotonic()
    with Timeout(BLOB_SECONDS) as timeout:
        try:
            for blob in export.named_blobs():
                late = blob.of_copy and time.monotonic() - began > COPIES_SECONDS
                try:
                    data = b"" if late else blobs.get(blob.name)
                except BlobMissing:
                    blob.row[blob.field] = None
                    continue
                loaded += len(data) if blob.of_copy else 0
                if late or loaded > MOST_BYTES:
                    export.leave_out_from(blob.row)
                    break
                blob.row[blob.field] = orjson.loads(decrypt_blob(data, blob.place))
        except (BlobError, Timeout) as error:
            if isinstance(error, Timeout) and error is not timeout:
                raise
            raise BlobStoreUnavailable from error


@privacy.post("/applications/<application_id>/erase")
@for_tenants(
    Scope.SUBMIT, "Erase an application", DONE, also=(GOING_ON,), acts=(Act.APPLICATION_ERASE,)
)
def post_erase(application_id: str) -> Response:
    """Removes the candidate, the application, its score and everything its job has left, in any
    state. 202 while its run is being stopped or a blob is left, which takes seconds, or while many
    jobs that were submitted in its place are left. May be repeated; reading it then is a 410."""
    return erase_in_turn(known_id(application_id))


@long_read
def erase_in_turn(application_id: str) -> Response:
    """Erase an application of the caller."""
    note_waited(0.0)  # for its turn: it has as long as any other change
    return erase_reply(current_tenant().id, application_id)


@privacy.post("/operator/applications/<application_id>/erase")
@for_operators(
    Scope.OPERATE,
    "Erase an application of any tenant",
    DONE,
    also=(GOING_ON,),
    acts=(Act.APPLICATION_ERASE,),
)
def post_erase_any(application_id: str) -> Response:
    """As its tenant can."""
    return erase_reply(None, known_id(application_id))


def erase_reply(tenant_id: int | None, application_id: str) -> Response:
    """Erase an application of the tenant, or of any."""
    with write_state() as engine:
        state = request_erasure(engine, tenant_id, application_id)
    if state is None:
        raise NotFound
    current_services().views.forget(application_id)
    document: dict[str, object] = {
        "id": application_id,
        "status": "erased" if state.erased_at else "erasing",
        "requested_at": state.requested_at,
        "erased_at": state.erased_at,
    }
    if state.erased_at is None:
        return Reply(document, 202, {"Retry-After": POLL_SECONDS})
    return Reply(document)
