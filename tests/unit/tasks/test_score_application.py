"""The scoring job: what it hands to the scorer, and what it charges for."""

from __future__ import annotations

import pytest

from tasks.context import JobContext
from tasks.jobs import score_application as job
from tasks.quota import QuotaReading, Report, ignore_reading
from tasks.scorers.protocol import ApplicationText, Score, TokenUsage
from tasks.scorers.rubric import CRITERIA, marked


class FakeScorer:
    def __init__(self) -> None:
        self.seen: list[ApplicationText] = []

    def prepare(self) -> None: ...

    def score(self, application: ApplicationText, report: Report = ignore_reading) -> Score:
        self.seen.append(application)
        report(QuotaReading(used_in=200, used_out=80))
        marks = marked({criterion.key: 71.25 for criterion in CRITERIA})
        quotes = {"clarity": ("Dear all",)}
        return Score(71.25, "Fine.", "fake", "r", "i", marks, quotes, 3, TokenUsage(1200, 80))


def test_the_tenant_is_charged_for_the_tokens_of_its_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer, ctx = FakeScorer(), JobContext("id")
    monkeypatch.setattr(job, "current_scorer", lambda: scorer)
    sent = job.ApplicationPayload(candidate="Ada", role="engineer", payload={"letter": "Dear all"})
    result = job.score_application(ctx, sent)
    assert result["score"] == 71.25
    assert (result["evidence"], result["dropped_quotes"]) == ({"clarity": ("Dear all",)}, 3)
    assert ctx.tokens == (1200, 80)
    assert ctx.quota_readings == [QuotaReading(used_in=200, used_out=80)]
    assert scorer.seen == [ApplicationText("Ada", "engineer", {"letter": "Dear all"})]


def test_a_text_is_handed_to_the_scorer_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = FakeScorer()
    monkeypatch.setattr(job, "current_scorer", lambda: scorer)
    sent = job.ApplicationPayload(candidate="Ada", payload=" 5 years,\n Go ")
    job.score_application(JobContext("id"), sent)
    assert scorer.seen == [ApplicationText("Ada", "general", " 5 years,\n Go ")]
