"""Who may sign in by OpenID Connect: values of a claim that make somebody an operator.

A session keeps the value that let its operator in, and rights follow from the rules at every
request: a value that is no longer listed ends the sessions that it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from app.errors import Forbidden, Unauthenticated
from app.tenants.directory import Caller
from app.tenants.scopes import OPERATOR_SCOPES, Scope

#: Before the subject, where others have the id of a key: no key begins with it.
PREFIX = "oidc:"
EMAIL = "email"
#: The most that OpenID Connect allows.
MOST_SUBJECT = 255
MOST_EMAIL = 254


class ExternalOperator(NamedTuple):
    """An operator without a key, as a session stores it."""

    issuer: str
    subject: str
    #: Verified, if there is one.
    email: str | None
    #: The value of the claim that let them in; empty: none did.
    granted_by: str

    def caller(self, scopes: Iterable[Scope] = ()) -> Caller:
        """The same as a caller."""
        who = f"{PREFIX}{self.subject}"
        return Caller(who, b"", None, scopes=frozenset(scopes), name=self.email)


class OperatorRules:
    """Which values of a claim of one issuer make somebody an operator, or one who only reads."""

    def __init__(
        self, issuer: str, claim: str, operators: Iterable[str], readers: Iterable[str]
    ) -> None:
        self.issuer = issuer
        self.claim = claim
        self._scopes = dict.fromkeys(map(self._compared, readers), frozenset({Scope.READ}))
        self._scopes |= dict.fromkeys(map(self._compared, operators), OPERATOR_SCOPES)

    def operator_of(self, claims: Mapping[str, Any]) -> ExternalOperator:
        """Whose claims these are, which are those of an ID token that was checked."""
        subject = claims.get("sub")
        if not is_text(subject, MOST_SUBJECT):
            raise Unauthenticated("The provider named no valid subject.")
        email = verified_email(claims)
        found = [value for value in self._values(claims, email) if value in self._scopes]
        # Whoever is both may do what an operator may.
        found.sort(key=lambda value: len(self._scopes[value]), reverse=True)
        return ExternalOperator(self.issuer, subject, email, found[0] if found else "")

    def caller(self, operator: ExternalOperator) -> Caller:
        """The operator as a caller with the rights of today's rules."""
        scopes = self._scopes.get(operator.granted_by)
        if scopes is None or operator.issuer != self.issuer:
            raise Forbidden("Your account may not sign in here: ask whoever runs this platform.")
        return operator.caller(scopes)

    def _values(self, claims: Mapping[str, Any], email: str | None) -> list[str]:
        given = email if self.claim == EMAIL else claims.get(self.claim)
        listed = given if isinstance(given, list) else [given]
        return [self._compared(value) for value in listed if isinstance(value, str)]

    def _compared(self, value: str) -> str:
        # Some letters beyond ASCII become others in lower case.
        return value.lower() if self.claim == EMAIL and value.isascii() else value


def verified_email(claims: Mapping[str, Any]) -> str | None:
    """The address, if the provider says that it is the user's."""
    email = claims.get(EMAIL)
    if claims.get("email_verified") is True and is_text(email, MOST_EMAIL):
        return email
    return None


def is_text(value: object, most: int) -> TypeGuard[str]:
    """Whether it is a text that can be stored and shown."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()
