"""A table of prices as text and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from kvsim.planning.price_table import MODES, PriceRow, PriceTable, TierGain
from kvsim.planning.value import ContextPrice

HEAD = (
    " live   hit    in | contribution [$/node-hour] |         margin          |   $/M tokens by kind, and of all     "
    "| price floor [$/M]",
    "       rate   SLO |     hits    ideal   demand |    hits   ideal  demand | uncached   cached   output     all "
    "|    ours   market",
)
SEATS = ("     seats $/month", "    a node   a seat")


def price_text(table: PriceTable) -> str:
    """A price table as text: a block of rows for each tier set and price, then tiers and long contexts."""
    first = table.rows[0].costs[0]
    shares = {"price": "in proportion to the API's prices", "resource_time": "by the engine's time"}
    lines = [f"{table.name}: API price {table.api or 'not known'}",
             f"speed: {first.trust}; $/M by kind shares the bill {shares[table.attribution]}",
             f"price floors of the same turns: ours is the bill on what is sold; the market's is the cheapest provider "
             f"({table.market or 'none known'}) with ideal hits",
             *([] if table.has_demand else ["no demand is stated: what it would limit equals ideal"])]
    has_seats = not math.isnan(first.seats.per_node)
    for _, rows in groupby(_by_offer(table.rows), key=lambda r: (r.tiers, r.offer.name)):
        lines += ["", *_block(list(rows), has_seats)]
    if table.tier_gains:
        lines += ["", *_gains(table.tier_gains, table.mode)]
    lines += ["", *_contexts(table), "", f"{table.simulations} simulations"]
    return "\n".join(lines)


def _by_offer(rows: Sequence[PriceRow]) -> list[PriceRow]:
    """Rows of one tier set and price together, in the order in which these first appear."""
    order = list(dict.fromkeys((r.tiers, r.offer.name) for r in rows))
    return sorted(rows, key=lambda r: order.index((r.tiers, r.offer.name)))


def _block(rows: list[PriceRow], has_seats: bool) -> Iterator[str]:
    found = rows[0].offer
    yield (f"{rows[0].tiers}; {found.name}: ${found.bill.usd_per_hour:,.2f} an hour ({found.bill.basis}, as of "
           f"{found.bill.as_of}, {found.bill.units.text()})")
    yield from (line + (extra if has_seats else "") for line, extra in zip(HEAD, SEATS, strict=True))
    yield from (_line(row, has_seats) for row in rows)


def _line(row: PriceRow, has_seats: bool) -> str:
    live, kinds = "-" if row.sessions is None else str(row.sessions), ("uncached_input", "cached_input", "output")
    usd = [row.of_cost(lambda c, k=k: getattr(c.usd_per_mtok, k)) for k in (*kinds, "blended")]
    reuse, kept = row.of_point(lambda p: p.hit_rate_frac), row.of_point(lambda p: p.within_slo_frac)
    floors = row.of_cost(lambda c: c.break_even_usd_per_mtok), row.of_cost(lambda c: c.market_floor_usd_per_mtok)
    parts = [
        f"{live:>5} {share_text(reuse):>5} {share_text(kept):>5} ",
        " ".join(f"{usd_text(row.contribution(m)):>8}" for m in MODES) + " ",
        " ".join(f"{share_text(row.margin(m)):>7}" for m in MODES) + " ",
        " ".join(f"{usd_text(v, 3):>8}" for v in usd[:-1]) + f" {usd_text(usd[-1], 3):>7} ",
        f"{usd_text(floors[0], 3):>7} {usd_text(floors[1], 3):>8}",
    ]
    seats = (f"  {usd_text(row.of_cost(lambda c: c.seats.per_node), 1):>8} "
             f"{usd_text(row.of_cost(lambda c: c.seats.usd_per_month)):>8}") if has_seats else ""
    return "| ".join(parts) + seats


def share_text(frac: float) -> str:
    """A share in per cent; far losses as what they are.

    >>> share_text(0.512), share_text(-30.0), share_text(float("nan"))
    ('51%', '<-999%', '-')
    """
    return "-" if math.isnan(frac) else "<-999%" if frac < -9.99 else f"{frac:.0%}"


def usd_text(value: float, digits: int = 2) -> str:
    """Dollars; "-" where they are not known, "none" where nothing is sold.

    >>> usd_text(1234.5), usd_text(float("inf")), usd_text(float("nan"))
    ('1,234.50', 'none', '-')
    """
    return "-" if math.isnan(value) else "none" if math.isinf(value) else f"{value:,.{digits}f}"


def _gains(gains: Sequence[TierGain], mode: str) -> Iterator[str]:
    yield f"What a tier brings, its own cost paid (revenue mode {mode})"
    yield f"  {'tier':<22} {'prices':<24} {'live':>5} {'$/hour':>9} {'$/GB-hour':>11} {'own $/hour':>11}"
    for g in gains:
        live = "-" if g.sessions is None else str(g.sessions)
        yield (f"  {g.tier:<22} {g.prices:<24} {live:>5} {g.usd_per_hour:>9,.2f} {g.usd_per_gb_hour:>11.5f} "
               f"{g.cost_usd_per_hour:>11.3f}")


def _contexts(table: PriceTable) -> Iterator[str]:
    """Fresh input against context, a row a context, a column a price profile."""
    names = list(table.contexts)
    flat = table.contexts[names[0]][0].flat_usd_per_mtok
    charged = "no API price is known" if math.isnan(flat) else f"the API charges {usd_text(flat)} for all"
    yield f"Fresh input at a busy engine by the context before it [$/M]; {charged}"
    yield "  " + f"{'context':>10}" + "".join(f" {name:>24}" for name in names)
    yield from (_context_line(row) for row in zip(*table.contexts.values(), strict=True))


def _context_line(row: Sequence[ContextPrice]) -> str:
    return f"  {row[0].context_tokens:>10,}" + "".join(f" {usd_text(p.usd_per_mtok, 3):>24}" for p in row)


def price_csv(table: PriceTable) -> str:
    """The rows of a price table as CSV, one a tier set, number of live sessions and price; an empty cell is unknown."""
    rows = [row.to_dict() for row in table.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
