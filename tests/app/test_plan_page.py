"""The Plan page in Streamlit's own test harness: no browser, real simulations of short traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import launch, state
from kvsim.scenario import load_scenario


def open_app(repo_root: Path, **query: str) -> AppTest:
    """The page after its first run, with a single short simulation unless the address says otherwise."""
    app = AppTest.from_file(str(repo_root / "app.py"), default_timeout=120)
    for name, value in {"curve": "4", "sessions": "4", "duration_s": "120", "warmup_s": "0",
                        "seeds": "1", **query}.items():
        app.query_params[name] = value
    return app.run()


def query(app: AppTest) -> dict[str, str]:
    """The address as plain text."""
    return {name: app.query_params[name][0] if isinstance(app.query_params[name], list) else str(app.query_params[name])
            for name in app.query_params}


def metrics(app: AppTest) -> dict[str, str]:
    """Metrics by label."""
    return {m.label: m.value for m in app.metric}


def test_page_answers_without_exception(repo_root: Path) -> None:
    app = open_app(repo_root)
    assert not app.exception
    assert not app.error
    said = [*app.success, *app.warning]
    assert "Kimi K3 on 8 x B300" in said[0].value
    assert "at **4 live sessions**" in said[0].value
    assert metrics(app)["KV cache (tokens)"] == "3.25M"
    assert metrics(app)["Sessions at 142k"] == "21"
    assert [t.value.columns[0] for t in app.table] == ["Context (tokens)", "Live sessions"]


def test_what_does_not_fit_says_so_with_the_budget(repo_root: Path) -> None:
    app = open_app(repo_root)
    app.selectbox(key="gpu").set_value("b200-sxm").run()
    assert not app.exception
    assert "does not fit" in app.error[0].value
    assert "fits on 16 GPUs as TP8 x PP2" in app.code[0].value
    assert "weights" in app.code[1].value
    assert not app.metric
    app.selectbox(key="num_gpus").set_value(16).run()
    assert not app.error
    assert "Kimi K3 on 16 x B200" in [*app.success, *app.warning, *app.info][0].value


def test_changing_sessions_changes_scenario_and_address(repo_root: Path) -> None:
    app = open_app(repo_root)
    before = [*app.success, *app.warning][0].value
    app.slider(key="sessions").set_value(3).run()
    assert not app.exception
    after = [*app.success, *app.warning, *app.error][0].value
    assert "at **3 live sessions**" in after
    assert after != before
    assert query(app)["sessions"] == "3"


def test_dram_switch_changes_scenario_verdict_and_address(repo_root: Path) -> None:
    app = open_app(repo_root, sessions="16", curve="16", duration_s="600", warmup_s="300")
    assert "**Collapsed:**" in app.error[0].value
    assert app.number_input(key="dram_gb").disabled
    app.toggle(key="dram").set_value(True).run()
    assert not app.exception
    assert "**Safe:**" in app.success[0].value
    assert "from DRAM" in app.success[0].value
    assert query(app)["dram"] == "yes"
    app.number_input(key="dram_gb").set_value(0.0).run()
    assert "**Collapsed:**" in app.error[0].value


def test_seeds_are_three_unless_asked(repo_root: Path) -> None:
    app = AppTest.from_file(str(repo_root / "app.py"), default_timeout=120)
    app.query_params["gpu"] = "b200-sxm"  # does not fit: nothing is simulated
    assert app.run().number_input(key="seeds").value == 3


def test_more_utilization_means_a_larger_predicted_pool(repo_root: Path) -> None:
    app = open_app(repo_root, pool="predicted")
    pools: list[float] = []
    for utilization in (0.90, 0.94):
        app.slider(key="gpu_memory_utilization").set_value(utilization).run()
        assert app.radio(key="pool").value == "predicted"
        pools.append(float(metrics(app)["KV pool per GPU"].split()[0]))
    assert pools[1] - pools[0] == pytest.approx(0.04 * 267.69, rel=0.02)


def test_what_cannot_be_simulated_keeps_its_capacity(repo_root: Path) -> None:
    app = open_app(repo_root, model="qwen3-30b-a3b", gpu="h20", num_gpus="1")
    assert not app.exception
    assert "does not cover 'h20'" in app.error[0].value
    assert "KV cache (tokens)" in metrics(app)
    assert "not simulated" in app.info[0].value


def test_wrong_address_is_told(repo_root: Path) -> None:
    app = open_app(repo_root, gpu="b3000")
    assert not app.exception
    assert "b3000" in app.warning[0].value
    assert app.selectbox(key="gpu").value == "b300-sxm"


def test_same_scenario_is_simulated_once() -> None:
    cache = state.ReportCache(max_reports=1)
    tiny = load_scenario({
        "name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
        "workload": {"fixed": {"num_requests": 2, "input_tokens": 50, "output_tokens": 5}, "concurrency": 1},
    })
    first = cache.report(tiny)
    assert cache.report(tiny.model_copy(update={"name": "other"})) is first
    other = cache.report(tiny.model_copy(update={"seed": 1}))
    assert other is not first
    assert cache.find(tiny) is None


def test_server_is_bound_to_the_loopback(repo_root: Path) -> None:
    words = launch.arguments(9000)
    assert words[1] == str(repo_root / "app.py")
    assert {"--server.port=9000", "--server.address=127.0.0.1", "--browser.gatherUsageStats=false",
            "--server.headless=true"} <= set(words)
