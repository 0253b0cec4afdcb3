"""A report as a small piece of HTML, as notebooks show it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.report.report import Report


def report_html(report: Report) -> str:
    """Headline figures of a report as a table.

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
    return f"<table><caption>{escape(report.name)}</caption><tbody>{rows}</tbody></table>"


def _headlines(report: Report) -> list[tuple[str, str]]:
    run = report.run
    return [
        ("Prefix hit rate (ideal)", f"{report.hit_rate.total:.1%} ({report.hit_rate.ideal:.1%})"),
        ("Output [tokens/s]", f"{report.throughput.output_tokens_per_s:,.1f}"),
        ("Throughput [tokens/s/GPU]", f"{report.throughput.total_tokens_per_s_per_gpu:,.0f}"),
        ("TTFT p50, p95 [s]", f"{report.latency.ttft_s.p50:.2f}, {report.latency.ttft_s.p95:.2f}"),
        ("TPOT p50 [ms]", f"{1e3 * report.latency.tpot_s.p50:.1f}"),
        ("Bill [$/h]", f"{report.cost.usd_per_hour:.2f}"),
        ("Blended [$/M tokens]", f"{report.cost.usd_per_mtok.blended:.3f}"),
        ("Contribution [$/node-hour]", f"{report.cost.contribution_usd_per_node_hour:,.2f}"),
        ("Binding", report.limits.binding),
        ("Run", f"{run.num_requests} requests, seed {run.seed}, digest {run.digest}, kvsim {run.version}"),
    ]
