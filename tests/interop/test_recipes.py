"""Every shipped recipe is a scenario."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kvsim.errors import InfeasibleError, ScenarioError
from kvsim.interop import ImportOptions, import_command
from kvsim.interop.importing import ImportedCommand
from kvsim.interop.recipes import Recipe, find_recipe, load_recipe, recipe_paths
from kvsim.profiles.paths import data_root
from kvsim.resolve import resolve

TOO_LONG = {"glm-5.2-h200-sglang-hicache": "two layers of experts in five live in host memory there",
            "kimi-k3-h200-sglang-tp16": "SGLang starts although one request of the model's 1M tokens does not fit"}


def read(name: str) -> tuple[Recipe, ImportedCommand]:
    recipe = load_recipe(recipe_paths()[name])
    options = ImportOptions(gpu=recipe.gpu, engine_profile=recipe.engine_profile)
    return recipe, import_command(recipe.command, options, where=name)


def test_there_are_recipes() -> None:
    assert len(recipe_paths()) >= 20
    assert {p.parent for p in recipe_paths().values()} == {data_root() / "recipes"}


@pytest.mark.parametrize("name", recipe_paths())
def test_recipe(name: str) -> None:
    recipe, found = read(name)
    assert found.engine == recipe.engine
    assert not [n for n in found.notes if "unknown flag" in n.text], found.text()
    assert datetime.date.fromisoformat(recipe.date) <= datetime.date(2026, 11, 30)
    assert recipe.source.startswith(("https://", "own measurements"))
    if name in TOO_LONG:
        with pytest.raises(InfeasibleError, match="one request of max_model_len"):
            resolve(found.scenario)
    else:
        assert resolve(found.scenario).capacity.max_concurrency >= 1


@pytest.mark.golden
def test_the_day0_node_holds_what_it_logged() -> None:
    """The log of that launch says 3,249,215 tokens (InferenceX commit f04fbe68): within the pool's 10 %."""
    _, found = read("kimi-k3-b300-vllm-day0")
    assert resolve(found.scenario).capacity.kv_tokens == pytest.approx(3_249_215, rel=0.10)


def test_a_broken_recipe_lists_everything(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("schema: kvsim/recipe/2\nname: y\ngpu: b300\nfoo: 1\n")
    with pytest.raises(ScenarioError) as caught:
        load_recipe(path)
    fields = {p.field for p in caught.value.problems}
    assert fields == {"engine", "version", "date", "source", "command", "foo", "schema", "name"}


def test_recipes_are_found_by_name_only() -> None:
    assert find_recipe("kimi-k3-b300-vllm-day0") is not None
    assert find_recipe("vllm serve kimi-k3") is None
