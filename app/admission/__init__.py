"""Admission: concurrent submissions become rows in one statement and one commit."""

from app.admission.admission import Admission
from models.jobs.submission import Admitted, IdempotencyKey, Submission, SubmissionGroup

__all__ = ["Admission", "Admitted", "IdempotencyKey", "Submission", "SubmissionGroup"]
