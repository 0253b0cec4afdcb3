"""Strict YAML: one place that reads every file a user writes."""

from __future__ import annotations

import pytest

from kvsim.errors import KvsimError, ProfileError
from kvsim.profiles.yamlio import parse_yaml


def test_numbers_as_people_write_them() -> None:
    data = parse_yaml("a: 1e9\nb: 2.5e-3\nc: 10\nd: .inf\ne: text\nf: 1_000", "x.yaml", KvsimError)
    assert data == {"a": 1e9, "b": 2.5e-3, "c": 10, "d": float("inf"), "e": "text", "f": 1000}


@pytest.mark.parametrize(("text", "said"), [
    ("a: 1\nb: 2\na: 3", "x.yaml: a: got the key a second time in line 3; accepted: each key once"),
    ("a: {b: 1, b: 2}", "b: got the key a second time in line 1"),
    ("- 1\n- 2", "x.yaml: got a list; accepted: a mapping of keys to values"),
    ("", "got an empty file"), ("# nothing", "got an empty file"), ("words", "got only 'words'"),
    ("a: [1, 2\nb: 3", "line 2"), ("a: }", "line 1"), ("a: !!python/object:os.system {}", "line 1"),
    ("? [1, 2]\n: 3", "a key that is not text"), ("a: 2026-13-45", "month must be in 1..12"),
    ("a: &x [*x", " at line "), ("\ta: 1", "line 1"), ("a: 1\x07", "x.yaml"),
])
def test_what_is_not_a_mapping_is_refused(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_yaml(text, "x.yaml", ProfileError)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].where == "x.yaml"
