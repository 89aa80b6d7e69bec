"""Admission: concurrent submissions become rows in one statement and one commit."""

from app.admission.admission import Admission
from app.admission.submission import Submission

__all__ = ["Admission", "Submission"]
