"""Agent sessions of kv-cache-tester and SemiAnalysis as a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from kvsim.errors import TraceError
from kvsim.workload.readers.reading import Reading
from kvsim.workload.readers.report import read_rows
from kvsim.workload.readers.weka_rle import session_tree
from kvsim.workload.sessions import SessionTree
from kvsim.workload.table import Trace, concat, trace_of_trees


def read_weka(reading: Reading) -> Trace:
    """Read one session an object; see `kvsim.workload.readers.weka_rle.session_tree`.

    Sessions have no common clock. Two sessions with one name are kept, the second under another name, and counted.
    """
    report, options = reading.report, reading.options
    sizes: list[int] = []

    def parse(row: dict[str, Any]) -> SessionTree:
        tree = session_tree(row, report, options.output_in_next_prompt)
        sizes.append(int(row["block_size"]))
        return tree

    trees = list(read_rows(reading.path, report, parse, options.max_bad_rows))
    names: Counter[str] = Counter()
    for i, tree in enumerate(trees):
        names[tree.id] += 1
        if names[tree.id] > 1:
            trees[i] = replace(tree, id=f"{tree.id}#{names[tree.id]}")
            report.adjusted["session name again, numbered"] += 1
    if len(set(sizes)) > 1:
        return concat([trace_of_trees([tree], size) for tree, size in zip(trees, sizes, strict=True)],
                      reading.path.name)
    if not trees:
        raise TraceError(f"{reading.path}: no session that can be used", report.bad)
    return trace_of_trees(trees, sizes[0], reading.path.name)
