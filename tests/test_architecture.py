"""Rules of DESIGN that a machine can hold: sizes, types, imports, start-up, forbidden text, one set of pins.

All but the import layers are read from the syntax tree, so that they hold for code that no test runs.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kvsim"

MEDIAN_LINES, P95_LINES, MAX_LINES = 7, 35, 60
MAX_PARAMETERS = 6
MAX_FILE_LINES = {"app.py": 60, "kvsim/cli.py": 250}

# Library -> the only places (folders end in "/") that may import it.
ONLY_IN = {
    "simpy": ("kvsim/cluster/",),
    "streamlit": ("kvsim/dashboard/", "app.py"),
    "plotly": ("kvsim/dashboard/",),
    "pandas": ("kvsim/dashboard/",),
    "click": ("kvsim/cli.py", "kvsim/commands/"),
    "rich": ("kvsim/commands/",),
}
PLAIN = ("kvsim/engine/", "kvsim/cache/", "kvsim/steptime/", "kvsim/memory/", "kvsim/cluster/")
# Library -> places that must not import it: simulation code works on plain dataclasses and arrays.
NOT_IN = {
    "pydantic": (*PLAIN, "kvsim/workload/"),
    "yaml": PLAIN,
}
# What `import kvsim` must leave unloaded: a script that only asks for a capacity starts at once.
HEAVY = ("streamlit", "plotly", "simpy", "pandas", "pyarrow", "scipy", "ray", "click", "rich")

FRONT_ENDS = ("kvsim/cli.py", "kvsim/dashboard/")

# Split, so that this file does not contain what it looks for.
FORBIDDEN_TEXT = {
    "unfinished work": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "a path of one machine": r"(?<![\w./-])/(?:ro" r"ot|wo" r"rk|ho" r"me)/",
    "a package registry's host": (r"py" r"pi\.org|python" r"hosted\.org|npm" r"js\.org|deb\." r"debian\.org"
                                  r"|/opt/(?:py" r"pi|whe" r"els)"),
    "a workplace's folder": r"\.lib" r"rary/",
    "another place for packages": r"--(?:extra-)?index" r"-url|--find" r"-links",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A parsed file of the project."""

    name: str
    text: str
    tree: ast.Module


def in_any(name: str, places: tuple[str, ...]) -> bool:
    """Whether a file is one of the places, or lies in one."""
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in places)


@cache
def sources() -> list[Source]:
    """The library and app.py."""
    files = [*sorted(PACKAGE.rglob("*.py")), *ROOT.glob("app.py")]
    texts = [(path, path.read_text(encoding="utf-8")) for path in files]
    return [Source(path.relative_to(ROOT).as_posix(), text, ast.parse(text)) for path, text in texts]


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method with where it stands."""
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, Function):
                yield f"{source.name}:{node.lineno} {node.name}", node


def body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the last, blank lines and comments included."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return function.end_lineno - body[0].lineno + 1 if body and function.end_lineno else 0


def parameters(function: Function) -> list[ast.arg]:
    """All parameters but self and cls."""
    listed = function.args
    named = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs]
    starred = [arg for arg in (listed.vararg, listed.kwarg) if arg is not None]
    return [arg for i, arg in enumerate(named + starred) if not (i == 0 and arg.arg in ("self", "cls"))]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or attribute, else an empty text."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes everything."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(item is None or dotted(item).split(".")[-1] in ("Exception", "BaseException") for item in caught)


def tracked_files() -> list[Path]:
    """The files under version control; in an unpacked archive, all that are not build products."""
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, capture_output=True, check=False)
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    hidden = {".venv", "build", "dist", "__pycache__"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not hidden & set(p.relative_to(ROOT).parts)]


def pins(name: str) -> dict[str, str]:
    """Package -> version of a lock file; every line must be an exact pin."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    loose = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert not loose, f"{name} has lines that are no exact pins"
    return {package.lower().replace("_", "-"): version for package, version in (line.split("==") for line in lines)}


def test_functions_are_short() -> None:
    lines = {where: body_lines(function) for where, function in functions()}
    assert len(lines) > 20
    too_long = {where: n for where, n in lines.items() if n > MAX_LINES}
    assert not too_long, f"functions over {MAX_LINES} lines: {too_long}"
    assert statistics.median(lines.values()) <= MEDIAN_LINES
    longest = sorted(lines.items(), key=lambda item: -item[1])[: max(1, len(lines) // 20)]
    assert statistics.quantiles(lines.values(), n=20)[-1] <= P95_LINES, f"the longest 5 %: {longest}"


def test_functions_take_few_parameters() -> None:
    too_many = {where: len(parameters(f)) for where, f in functions() if len(parameters(f)) > MAX_PARAMETERS}
    assert not too_many, f"functions with more than {MAX_PARAMETERS} parameters: {too_many}"


def test_every_parameter_and_return_is_annotated() -> None:
    bare = [f"{where}({arg.arg})" for where, f in functions() for arg in parameters(f) if arg.annotation is None]
    bare += [f"{where} -> ?" for where, f in functions() if f.returns is None]
    assert not bare, f"without a type: {bare}"


def test_no_star_import() -> None:
    stars = [f"{source.name}:{node.lineno}" for source in sources() for node in ast.walk(source.tree)
             if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)]
    assert not stars


def test_broad_except_only_in_front_ends() -> None:
    broad = [f"{source.name}:{node.lineno}" for source in sources() if not in_any(source.name, FRONT_ENDS)
             for node in ast.walk(source.tree) if isinstance(node, ast.ExceptHandler) and is_broad(node)]
    assert not broad


def test_library_neither_prints_nor_exits_nor_changes_directory() -> None:
    front = ("kvsim/cli.py", "kvsim/__main__.py", "kvsim/commands/")
    calls = {"print", "input", "exit", "quit", "breakpoint", "sys.exit", "os._exit", "os.chdir", "sys.stdout.write",
             "SystemExit"}
    found = [f"{source.name}:{node.lineno} {dotted(node.func)}" for source in sources()
             if not in_any(source.name, front)
             for node in ast.walk(source.tree) if isinstance(node, ast.Call) and dotted(node.func) in calls]
    assert not found


@pytest.mark.parametrize("name", MAX_FILE_LINES)
def test_entry_points_are_thin(name: str) -> None:
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES[name], f"{name} has {lines} lines, {MAX_FILE_LINES[name]} are allowed"


@pytest.mark.parametrize("library", ONLY_IN)
def test_library_is_imported_only_where_it_belongs(library: str) -> None:
    astray = [f"{source.name}:{line}" for source in sources() if not in_any(source.name, ONLY_IN[library])
              for line, name in imported(source.tree) if name == library]
    assert not astray, f"{library} belongs to {ONLY_IN[library]}"


@pytest.mark.parametrize("library", NOT_IN)
def test_simulation_code_stays_plain(library: str) -> None:
    astray = [f"{source.name}:{line}" for source in sources() if in_any(source.name, NOT_IN[library])
              for line, name in imported(source.tree) if name == library]
    assert not astray, f"{library} has no place in {NOT_IN[library]}"


def test_layers() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_import_starts_fast() -> None:
    code = "import sys, kvsim; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "kvsim" in loaded
    assert not loaded & set(HEAVY), "import kvsim loads what only some of its users need"


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_files_do_not_contain(what: str) -> None:
    pattern = re.compile(FORBIDDEN_TEXT[what])
    files = tracked_files()
    assert len(files) > 20
    hits: list[str] = []
    for path in files:
        text = path.read_bytes().decode("utf-8", errors="replace")
        hits += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    assert not hits, f"{what} in {hits}"


def test_forbidden_text_would_be_found() -> None:
    samples = {
        "unfinished work": "# TO" "DO: later", "a path of one machine": "see /wo" "rk/main",
        "a package registry's host": "https://py" "pi.org/x", "a workplace's folder": "/.lib" "rary/x",
        "another place for packages": "--index" "-url x",
    }
    assert samples.keys() == FORBIDDEN_TEXT.keys()
    assert all(re.search(FORBIDDEN_TEXT[what], sample) for what, sample in samples.items())
    assert not re.search(FORBIDDEN_TEXT["a path of one machine"], "https://example.com/wo" "rk/x")


def test_locks_agree() -> None:
    core, full = pins("requirements-core.lock"), pins("requirements.lock")
    assert core.items() <= full.items()
    assert "streamlit" not in core
    assert "ray" in full
    assert "ray" not in core
