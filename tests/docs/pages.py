"""Blocks of the project's Markdown pages, fenced or indented, and what they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))

FENCE = re.compile(r"^```(\S*) *(.*)$")
INDENT = "    "
# What an indented block is, by how it begins; anything else is text.
BEGINNINGS = {"bash": ("kvsim ", "make ", "export ", "pip "), "python": ("import ", "from "),
              "yaml": ("schema: kvsim/",)}


@dataclass(frozen=True, slots=True)
class Block:
    """A block: its page, line (from 1), language, the further words of its fence, and what is in it."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        """``docs/x.md:12``."""
        return f"{self.page}:{self.line}"

    @property
    def compared(self) -> bool:
        """Whether it shows what the block before it prints."""
        return self.language == "text" and "output" in self.words


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page in order."""
    return parse((ROOT / page).read_text(encoding="utf-8"), page)


def write_outputs(page: str, printed: dict[int, str]) -> None:
    """Put what blocks print into the fences that begin at these lines."""
    path = ROOT / page
    lines = path.read_text(encoding="utf-8").splitlines()
    for start in sorted(printed, reverse=True):
        end = next(k for k in range(start, len(lines)) if lines[k].strip() == "```")
        lines[start:end] = printed[start].splitlines()
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse(text: str, page: str) -> list[Block]:
    """All blocks of a Markdown text in order; an indented block stands after an empty line."""
    found: list[Block] = []
    lines, i = text.splitlines(), 0
    while i < len(lines):
        fence = FENCE.match(lines[i])
        begins = lines[i].startswith(INDENT) and bool(lines[i].strip()) and (i == 0 or not lines[i - 1].strip())
        if fence:
            end = next(k for k in range(i + 1, len(lines)) if lines[k].strip() == "```")
            content = "".join(f"{line}\n" for line in lines[i + 1:end])
            found.append(Block(page, i + 1, fence[1], tuple(fence[2].split()), content))
            i = end
        elif begins:
            end = _end_of_indented(lines, i)
            content = "\n".join(line[len(INDENT):] for line in lines[i:end]).rstrip() + "\n"
            found.append(Block(page, i + 1, _language(content), (), content))
            i = end - 1
        i += 1
    return found


def _end_of_indented(lines: list[str], start: int) -> int:
    """Line after the last one that is indented or empty; a command or file after an empty line begins another block."""
    end = start + 1
    while end < len(lines) and (lines[end].startswith(INDENT) or not lines[end].strip()):
        if not lines[end - 1].strip() and _language(lines[end].removeprefix(INDENT)) in ("bash", "yaml"):
            break
        end += 1
    return end


def _language(content: str) -> str:
    """Language of an indented block by its beginning."""
    found = [language for language, begin in BEGINNINGS.items() if content.startswith(begin)]
    return found[0] if found else "text"


def commands(script: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and empty lines left out."""
    joined = script.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s+)#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line]
