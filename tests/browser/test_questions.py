"""Six questions of a new user, each answered within three clicks; docs/how-to-dashboard.md has the same log.

A click is a press of the mouse, or a number that is typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

SHORT = "curve=4,8,16&sessions=8&duration_s=600&warmup_s=120&seeds=1"
MOST_CLICKS = 3


class User:
    """Somebody at the page who counts clicks."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0

    def click(self, what: Locator) -> None:
        what.click()
        self.clicks += 1

    def type(self, what: Locator, text: str) -> None:
        what.fill(text)
        what.press("Enter")
        self.clicks += 1

    def reads(self, pattern: str) -> None:
        expect(self.page.get_by_text(re.compile(pattern)).first).to_be_visible()


def how_many_agents(user: User) -> None:
    user.reads(r"serves (at least |fewer than )?\d+ agents? inside TTFT p95 10 s")


def what_does_dram_buy(user: User) -> None:
    user.click(user.page.get_by_role("link", name="Cost", exact=True))
    user.reads("DRAM pays back")
    user.reads(r"tiers=DRAM 1,889 GB")


def at_what_price_is_money_lost(user: User) -> None:
    user.reads(r"Loses money above \\?\$[0-9.]+ per GPU-hour")
    user.click(user.page.get_by_role("link", name="Cost", exact=True))
    user.reads("API prices fall by more than [0-9]+%")


def can_i_take_more_traffic(user: User) -> None:
    expect(user.page.get_by_test_id("stMetric").filter(has_text="Headroom to the edge")).to_contain_text(
        re.compile(r"[+−]\d+ %"))


def which_box_at_my_price(user: User) -> None:
    price = user.page.get_by_test_id("stMain").get_by_role("spinbutton", name="$ per GPU-hour").first
    user.reads("Best at these prices")
    user.type(price, "1.00")
    user.reads("Best at these prices: 8 x B300")


def dram_or_another_node(user: User) -> None:
    user.click(user.page.get_by_role("button", name="Find the next best dollar"))
    expect(user.page.get_by_role("button", name="Stop searching")).to_be_visible()
    for change in ("+1 TB of DRAM a replica", "+1 replica"):
        row = user.page.get_by_role("row").filter(has=user.page.get_by_role("cell", name=change, exact=True))
        # Dozens of simulations, beside the page.
        expect(row).to_be_visible(timeout=400_000)


QUESTIONS: dict[str, tuple[Callable[[User], None], str]] = {
    "how many agents can one B300 node serve?": (how_many_agents, SHORT),
    "what does DRAM buy me?": (what_does_dram_buy, SHORT),
    "at what price do I lose money?": (at_what_price_is_money_lost, SHORT),
    "can I take 20 % more traffic?": (can_i_take_more_traffic, SHORT),
    "which box at my contract price?": (which_box_at_my_price, SHORT),
    "DRAM or another node?": (dram_or_another_node, "curve=4&sessions=4&duration_s=60&warmup_s=0&seeds=1"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_within_three_clicks(page: Page, app_url: str, question: str) -> None:
    ask, query = QUESTIONS[question]
    page.goto(f"{app_url}/?{query}")
    expect(page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
    user = User(page)
    ask(user)
    assert user.clicks <= MOST_CLICKS
    expect(page.get_by_text("Traceback")).to_have_count(0)


def test_documented_click_log_is_this_one(repo_root: Path) -> None:
    text = (repo_root / "docs" / "how-to-dashboard.md").read_text(encoding="utf-8")
    assert [q for q in QUESTIONS if q.rstrip("?") not in text] == []
