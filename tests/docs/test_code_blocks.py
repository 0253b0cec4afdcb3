"""Every block of code on every page runs; what a page says is printed is printed.

Shipped scenarios are measured for one minute here (`tests.docs.files`), but on pages that show outputs.
``KVSIM_RENEW_DOCS=1 pytest tests/docs/test_code_blocks.py`` writes the shown outputs anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.files import prepare, shorter_scenarios
from tests.docs.pages import PAGES, ROOT, Block, blocks_of, commands, parse, write_outputs
from tests.docs.shell import Failed, Reader

RENEW = os.environ.get("KVSIM_RENEW_DOCS") == "1"

NOT_RUN = {
    "kvsim app": "a server; tests/browser and tests/install start it",
    "make ": "the checkout's own commands, of which this test is a part",
    "kvsim plan plan-k3": "minutes; tests/plan runs smaller plans, docs/how-to-size-a-fleet.md a quick one",
    "kvsim sweep k3-cliff-1000": "a thousand cases",
    "kvsim sweep scenarios/k3-cliff-sweep.yaml": "docs/how-to-sweep.md runs the same sweep",
    "kvsim report cliff": "docs/how-to-sweep.md makes the same page",
    "kvsim cost k3-b300-dram --sessions 1,2,4": "sixteen runs; docs/tutorial.md has four of them",
    "kvsim validate gpu-runs tests/data": "tests/validate scores the same runs",
    "kvsim run k3-b300-dram --uncertainty": "some fifty runs; tests/plan/test_uncertainty.py has fewer draws",
    "kvsim compare results-a": "folders that the reader has; tests/sweep compares such",
    "kvsim compare k3-b300-cliff": "docs/how-to-sweep.md has the same comparison",
    "kvsim calibrate --microbench": "needs a GPU and PyTorch",
    "kvsim validate engine": "tests/engine checks the recorded cases",
    "kvsim cache path/to": "a path that the reader has",
    "kvsim trace info path/to": "a path that the reader has",
    "kvsim profiles import path/to": "a path that the reader has",
    "kvsim calibrate path/to": "a path that the reader has",
    "kvsim import-log path/to": "a path that the reader has",
    "kvsim validate gpu-runs path/to": "a path that the reader has",
}
"""Beginnings of commands that are only parsed, and why."""


def shows_outputs(page: str) -> bool:
    """Whether the page has outputs that are compared."""
    return any(block.compared for block in blocks_of(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language != "text" for b in blocks_of(page))])
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    prepare(folder)
    if not shows_outputs(page):
        shorter_scenarios(tmp_path / "root")
        monkeypatch.setattr("kvsim.scenario.files.data_root", lambda: tmp_path / "root")
        for path in (tmp_path / "root" / "scenarios").iterdir():
            (folder / "scenarios" / path.name).write_text(path.read_text())
    monkeypatch.chdir(folder)
    reader, renewed = Reader(monkeypatch, NOT_RUN), dict[int, str]()
    for block in blocks_of(page):
        if not block.compared:
            reader.read(block)
        elif RENEW:
            renewed[block.line] = reader.printed
        else:
            assert block.text == reader.printed, f"{block.place}: not what is printed today (KVSIM_RENEW_DOCS=1 renews)"
    if renewed:
        write_outputs(page, renewed)


def test_what_is_not_run_is_still_on_a_page() -> None:
    typed = [line for page in PAGES for block in blocks_of(page) if block.language == "bash"
             for line in commands(block.text)]
    unused = [prefix for prefix in NOT_RUN if not any(line.startswith(prefix) for line in typed)]
    assert not unused
    left_out = [line for line in typed if any(line.startswith(prefix) for prefix in NOT_RUN)]
    assert len(left_out) < len(typed) / 3


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page for page in PAGES if page.startswith("docs/") and page != "docs/README.md"
               and f"({Path(page).name})" not in index]
    assert not missing


@pytest.mark.parametrize(("text", "language"), [
    ("```bash\nkvsim nonsense\n```", "bash"), ("    kvsim run no-such-scenario\n", "bash"),
    ("```python\n1 / 0\n```", "python"), ("```yaml\na: [\n```", "yaml"),
    ("    kvsim app --no-such-flag", "bash"), ("```bash exit-3\nkvsim profiles list gpu\n```", "bash"),
])
def test_a_wrong_block_is_found(text: str, language: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = parse(text, "page.md")
    assert block.language == language
    with pytest.raises(Failed, match=r"page\.md:1"):
        Reader(monkeypatch, NOT_RUN).read(block)


def test_blocks_are_found_with_their_lines() -> None:
    text = "Words.\n\n    kvsim run x  # why\n\nmore\n\n```text output\nyes\n```\n\n1. a list\n    kvsim not code\n"
    first, second = parse(text, "p.md")
    assert (first, second) == (Block("p.md", 3, "bash", (), "kvsim run x  # why\n"),
                               Block("p.md", 7, "text", ("output",), "yes\n"))
    assert commands("kvsim a \\\n  b  # c\n\n# d\n") == ["kvsim a    b"]
