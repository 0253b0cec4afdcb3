"""Strict YAML: what PyYAML's safe loader says, but for duplicate keys, bare exponents and aliases of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvsim.errors import KvsimError
from kvsim.profiles.yamlio import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "a: 010", "a: 0x1F", "a: 0b11", "a: 1_000", "a: 1:30", "a: .5", "a: 5.", "a: 1.2.3", "a: -3", "a: +3", "a: 1.5e-3",
    "a: 00", "a: 0", "a: 0.0", "a: 99999999999999999999", "a: .inf", "a: \u0663", "a: yes", "a: null", "a:",
    "a: ~", "a: ''", "a: '12'", "a: |\n  two\n  lines\n", "a: 2026-09-01", "2026-01-01: a", "1: 2", "1.5: 2", "true: 2",
    "a: !!str 12", "a: !!float 3", "a: !!int '3'", "a: !!set {b, c}", "a: !!binary aGk=",
    "a: &x [1, {b: 2}]\nc: *x", "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", "a: &x {b: 1}\nc: {<<: [*x], d: 3}",
)


@pytest.mark.parametrize("text", TEXTS)
def test_values_are_those_of_the_safe_loader(text: str) -> None:
    assert repr(parse_yaml(text, "x", KvsimError)) == repr(yaml.safe_load(text))


def test_shipped_files_say_what_the_safe_loader_reads() -> None:
    files = [*ROOT.glob("models/*.yaml"), *ROOT.glob("engine_profiles/*.yaml"), *ROOT.glob("scenarios/*.yaml")]
    assert len(files) > 20
    for path in files:
        text = path.read_text(encoding="utf-8").replace("1e", "1.0e+")
        assert parse_yaml(text, path.name, KvsimError) == yaml.safe_load(text)


def test_an_alias_is_made_once() -> None:
    """So that a file of aliases of aliases stays as small as it is."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    data = parse_yaml("\n".join(lines), "x", KvsimError)
    assert data["a59"][0] is data["a59"][1] is data["a58"]


@pytest.mark.parametrize("text", ["a: &x {b: *x}", "a: &x [1, [*x]]"])
def test_an_alias_inside_of_what_it_names_is_refused(text: str) -> None:
    with pytest.raises(KvsimError, match="an alias inside of what it names at line 1"):
        parse_yaml(text, "x", KvsimError)


@pytest.mark.parametrize(("text", "line"), [("a: 1\nb: 2\na: 3", 3), ("a: [1, {b: 1, b: 2}]", 1),
                                            ("d: &d {a: 1}\ne: {<<: *d, f: 1, f: 2}", 2)])
def test_a_key_stands_once(text: str, line: int) -> None:
    with pytest.raises(KvsimError, match=f"a second time in line {line}"):
        parse_yaml(text, "x", KvsimError)


def test_files_nested_hundreds_deep_are_refused() -> None:
    with pytest.raises(KvsimError, match="nested too deeply"):
        parse_yaml("a: " + "[" * 900 + "]" * 900, "x", KvsimError)
