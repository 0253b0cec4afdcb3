"""Launch commands in the forms that people keep them in."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.interop.flags import FlagTable, parse_flags
from kvsim.interop.shell import read_launch
from kvsim.interop.vllm import TABLE


@pytest.mark.parametrize("text", [
    "vllm serve m -tp 8",
    "A=1 B='x y' vllm serve m -tp 8",
    "sudo nohup /opt/venv/bin/vllm serve m -tp 8 > out.log 2>&1 &",
    "# start it\nexport A=1 # why\n\nvllm serve m \\\n  -tp 8",
    "vllm serve m \\\r\n -tp 8\r\n",
    "cd /models && env A=1 vllm serve m -tp 8; echo done",
    "TP=8\nvllm serve m -tp ${TP}",
    "TP=8\nvllm serve m -tp \"$TP\" | tee log",
    "bash -c 'vllm serve m -tp 8'",
    "docker run --gpus all -d --rm -e A=1 -v /a:/b -p 8000:8000 --entrypoint bash img -lc 'vllm serve m -tp 8'",
    "docker run --gpus all -it vllm/vllm-openai:latest m -tp 8",
    "podman run --device=/dev/kfd img vllm serve m -tp 8",
    "python3 -m vllm.entrypoints.openai.api_server m -tp 8",
])
def test_forms_of_one_command(text: str) -> None:
    launch = read_launch(text)
    assert launch.engine == "vllm"
    assert launch.args == ("m", "-tp", "8")


@pytest.mark.parametrize("text", ["sglang serve --model-path m", "python -m sglang.launch_server --model-path m",
                                  "docker run lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --model-path m"])
def test_sglang(text: str) -> None:
    launch = read_launch(text)
    assert (launch.engine, launch.args) == ("sglang", ("--model-path", "m"))


def test_environment_is_collected() -> None:
    launch = read_launch("export A=1\nB=2 docker run -e C='3 4' --env D=5 -e HF_TOKEN vllm/vllm-openai m")
    assert launch.env == {"A": "1", "B": "2", "C": "3 4", "D": "5"}
    assert launch.image == "vllm/vllm-openai"


def test_single_quotes_keep_dollars_and_double_quotes_do_not() -> None:
    launch = read_launch("X=1\nvllm serve '$X' --a \"$X\" --b ${Y:-7} --c $Z")
    assert launch.args == ("$X", "--a", "1", "--b", "7", "--c", "$Z")


def test_json_over_several_lines() -> None:
    launch = read_launch("vllm serve m --speculative-config '{\n \"method\": \"mtp\"\n}'")
    assert json.loads(launch.args[2]) == {"method": "mtp"}


def test_further_commands_are_counted() -> None:
    assert read_launch("vllm serve a\nvllm serve b -tp 2\nsglang serve --model-path c").others == 2


@pytest.mark.parametrize("text", ["", "ls -l", "vllm bench serve --model m", "docker pull vllm/vllm-openai"])
def test_nothing_that_starts_an_engine(text: str) -> None:
    with pytest.raises(ScenarioError, match="vllm serve MODEL"):
        read_launch(text)


def test_an_open_quote_names_its_line() -> None:
    with pytest.raises(ScenarioError, match="line 2"):
        read_launch("vllm serve m \\\n --x 'open")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12), max_size=6))
def test_quoted_words_come_through(words: list[str]) -> None:
    assert list(read_launch(shlex.join(["vllm", "serve", *words])).args) == words


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        launch = read_launch(text)
    except ScenarioError:
        return
    assert launch.engine in ("vllm", "sglang")


WORDS = ["-tp", "8", "--foo", "x", "--no-enable-prefix-caching", "-O3", "{", "--a.b", "-1", "--",
         "--speculative-config.method", "--speculative-config", "-"]


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_any_words_are_sorted_or_noted(words: list[str]) -> None:
    parsed = parse_flags(words, TABLE)
    assert set(parsed.values) <= set(TABLE.flags)


def test_tables_name_every_flag_once() -> None:
    from kvsim.interop import sglang, vllm

    for module in (vllm, sglang):
        groups = [v for k, v in vars(module).items() if k.startswith(("_NO_EFFECT", "_MISSING", "_MANY"))]
        names = [n for group in groups for text in group.values() for n in text.split()]
        names += [n for k, v in vars(module).items() if k.startswith("_MODELLED") for n in v.split()]
        assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})
        table: FlagTable = module.TABLE
        assert set(table.aliases.values()) <= set(table.flags)
