"""Pages that are made from something else are current, and links lead somewhere.

``KVSIM_RENEW_DOCS=1 pytest tests/docs`` renews the rows that docs/limits.md quotes; ``make docs`` all of it.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

RENEW = os.environ.get("KVSIM_RENEW_DOCS") == "1"
LINK = re.compile(r"\[[^\]]+\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
QUOTED = re.compile(r"^\| ([A-Z]?\d+[a-z]?) \|.*\|$", re.MULTILINE)
LIMITS = ROOT / "docs" / "limits.md"


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.+?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    found = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    for target, anchor in found:
        path = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page} links to {target}#{anchor}"


def test_paths_that_pages_name_exist() -> None:
    """Names in backticks of files and folders of the checkout."""
    named = re.compile(r"`((?:docs|kvsim|tests|benchmarks|scenarios|models|recipes|calibrations|engine_profiles|"
                       r"hardware_profiles)/[\w./\-]*)`")
    lost = [f"{page}: {path}" for page in PAGES for path in named.findall((ROOT / page).read_text(encoding="utf-8"))
            if not (ROOT / path).exists() and not re.fullmatch(r"kvsim/[\w-]+/\d+", path)]
    assert not lost


def test_the_design_names_every_layer() -> None:
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    files = (ROOT / "kvsim").iterdir()
    there = {path.stem for path in files if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__", "__main__"} == named


def test_the_reference_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"), run_name="reference")["page"]()
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == made, "run 'make docs'"


def test_quoted_reproductions_are_current() -> None:
    source = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    cells = (line.split(" | ") for line in source.splitlines())
    rows = {row[0].removeprefix("| "): " | ".join(row[:5]) + " |" for row in cells if len(row) > 5}
    text = LIMITS.read_text(encoding="utf-8")
    current = QUOTED.sub(lambda match: re.sub(r" +\|", " |", rows[match[1]]), text)
    if RENEW:
        LIMITS.write_text(current, encoding="utf-8")
        return
    assert len(QUOTED.findall(text)) >= 10
    assert text == current, "run 'make docs'"
