"""A report as a small piece of HTML, as notebooks show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from kvsim.report.report import NOT_AS_RECORDED, Report, trace_lines


def report_html(report: Report) -> str:
    """Headline figures of a report as a table; below it, what of its traces was not played as recorded.

    Examples
    --------
    >>> import kvsim
    >>> report = kvsim.simulate({"name": "a<b", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 10}, "concurrency": 2}})
    >>> report_html(report)[:39]
    '<table><caption>a&lt;b</caption><tbody>'
    """
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>"
                   for name, value in _headlines(report))
    table = f"<table><caption>{escape(report.name)}</caption><tbody>{rows}</tbody></table>"
    return table + lines_html(NOT_AS_RECORDED, trace_lines([report]), "p")


def lines_html(title: str, lines: Sequence[str], tag: str) -> str:
    """A title in a tag above a list; nothing where there are no lines.

    >>> lines_html("a", ["<1", "  2"], "p"), lines_html("a", [], "p")
    ('<p>a</p><ul><li>&lt;1</li><li>2</li></ul>', '')
    """
    if not lines:
        return ""
    return f"<{tag}>{escape(title)}</{tag}><ul>{''.join(f'<li>{escape(line.strip())}</li>' for line in lines)}</ul>"


def _known(value: float, form: str) -> str:
    """A figure; in words where there is none (no price is known, nothing finished)."""
    return f"{value:{form}}" if math.isfinite(value) else "not known"


def _headlines(report: Report) -> list[tuple[str, str]]:
    run, ttft_s = report.run, report.latency.ttft_s
    return [
        ("Prefix hit rate (ideal)", f"{report.hit_rate.total:.1%} ({report.hit_rate.ideal:.1%})"),
        ("Output [tokens/s]", f"{report.throughput.output_tokens_per_s:,.1f}"),
        ("Throughput [tokens/s/GPU]", f"{report.throughput.total_tokens_per_s_per_gpu:,.0f}"),
        ("TTFT p50, p95 [s]", f"{_known(ttft_s.p50, '.2f')}, {_known(ttft_s.p95, '.2f')}"),
        ("TPOT p50 [ms]", _known(1e3 * report.latency.tpot_s.p50, ".1f")),
        ("Bill [$/h]", f"{report.cost.usd_per_hour:.2f}"),
        ("Blended [$/M tokens]", _known(report.cost.usd_per_mtok.blended, ".3f")),
        ("Contribution [$/node-hour]", _known(report.cost.contribution_usd_per_node_hour, ",.2f")),
        ("Binding", report.limits.binding),
        *([("Pipeline", report.pipeline.text().partition(": ")[2])] if report.pipeline else []),
        ("Run", f"{run.num_requests} requests, seed {run.seed}, digest {run.digest}, kvsim {run.version}"),
    ]
