"""Admission: concurrent submissions become rows in one statement and one commit."""

from app.admission.admission import Admission
from app.admission.submission import Admitted, Entry, Key, Submission

__all__ = ["Admission", "Admitted", "Entry", "Key", "Submission"]
