"""Writes docs/reference.md from the commands, the schemas and a report: ``python docs/make_reference.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import click
from pydantic import BaseModel

import kvsim
from kvsim.batch.spec import Batch
from kvsim.cli import COMMANDS, cli
from kvsim.profiles.calibration import CalibrationProfile
from kvsim.profiles.draft import DraftProfile
from kvsim.profiles.engine_profile import EngineProfile
from kvsim.profiles.hardware import ApiPriceProfile, GpuProfile, NodeProfile, PriceProfile, StorageProfile
from kvsim.profiles.model import ModelProfile
from kvsim.scenario import Scenario

PAGE = Path(__file__).parent / "reference.md"
FILES: Mapping[str, type[BaseModel]] = {
    "Scenario": Scenario, "Sweep": Batch, "GPU": GpuProfile, "Node": NodeProfile, "Storage": StorageProfile,
    "Price": PriceProfile, "API price": ApiPriceProfile, "Model": ModelProfile, "Draft model": DraftProfile,
    "Engine profile": EngineProfile, "Calibration": CalibrationProfile,
}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
# Parts of a report whose keys are those of the run.
OPEN = ("scenario", "profiles", "counters", "by_class", "revenue_by_class")

INTRODUCTION = """# Reference

Made by `make docs`; do not edit.

## Exit codes and environment

| code | meaning |
|---|---|
| 0 | done |
| 1 | a check failed, or some cases of a sweep did |
| 2 | the input is wrong: one line a problem, with place, value and what is accepted |
| 3 | it does not fit, or nothing serves the demand: an answer, with its budget |
| 70 | a bug; the only one with a traceback |

| variable | what it names |
|---|---|
| `KVSIM_PROFILES` | folders of own profiles and calibrations, separated as in `PATH`; they come first |
| `KVSIM_TRACES` | the folder in which a scenario's traces are looked up |
| `KVSIM_SWEEPS` | the folder in which the dashboard keeps sweeps |
"""

REPORT = """Names in the JSON of `kvsim run --json` and of `Report.to_dict()`, in base units (`_s`, `_bytes`, `_usd`,
`_frac`: 0 to 1); `[]` stands for each entry of a list, `*` for names of the run's own. What is not known is null.
"""
UNITS = """Unknown fields are errors. Values that have a unit may be written with one (`1889 GB`, `10 min`); without,
they are in the base unit of their name. A *Figure* is `{value, unit, kind, source}`, with `range`, `note` and `why`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_commands(), *_python(), *_report(), *_files()]).rstrip() + "\n"


def _commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "## Commands\n"
    context = click.Context(cli, info_name="kvsim")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is not None:
            yield from _command(command, click.Context(command, parent=context, info_name=name))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """One command, or the commands of a group."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            if sub is not None:
                yield from _command(sub, click.Context(sub, parent=context, info_name=name))
        return
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    yield f"### `{' '.join([context.command_path.split(' [')[0], *arguments])}`\n"
    yield f"{_joined(command.help or '')}\n"
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        yield from ["| option | | default |", "|---|---|---|"]
        yield from (_option(option, context) for option in options)
        yield ""


def _option(option: click.Option, context: click.Context) -> str:
    """A row of a command's table."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" `{option.make_metavar(context).removesuffix(' RANGE')}`"
    shown = option.to_info_dict()["default"]
    quiet = shown in (None, False, ()) or not isinstance(shown, str | int | float)
    default = "required" if option.required else "" if quiet else f"`{shown}`"
    return f"| {names}{_cell(value)} | {_cell(_joined(option.help or ''))} | {_cell(default)} |"


def _python() -> Iterator[str]:
    """The public names."""
    yield from ["## Python\n", "| `kvsim.` | |", "|---|---|"]
    for name in sorted(kvsim.__all__):
        summary = (inspect.getdoc(getattr(kvsim, name)) or "").split("\n\n")[0]
        yield f"| `{name}` | {_cell(_joined(summary))} |"
    yield ""


def _report() -> Iterator[str]:
    """Names of a report's JSON, taken from one."""
    scenario = kvsim.load_scenario("k3-b300-dram", ["workload.duration_s=60", "workload.concurrency=1"])
    yield "## Report\n"
    yield REPORT
    names = sorted(set(_names(kvsim.simulate(scenario).to_dict())))
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.split(".")[0].removesuffix("[]"), []).append(f"`{name}`")
    yield from (f"- {', '.join(group)}" for group in groups.values())
    yield ""


def _names(data: Any, path: str = "") -> Iterator[str]:
    """Dotted names of all values."""
    if isinstance(data, dict) and path.rpartition(".")[2] in OPEN:
        yield f"{path}.*"
    elif isinstance(data, dict) and data:
        for key, value in cast("dict[str, Any]", data).items():
            yield from _names(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list) and data and isinstance(data[0], dict):
        for value in cast("list[Any]", data):
            yield from _names(value, f"{path}[]")
    else:
        yield path


def _files() -> Iterator[str]:
    """Every kind of file with its fields, part by part."""
    yield "## Files\n"
    yield UNITS
    for title, model in FILES.items():
        schema = model.model_json_schema(by_alias=True)
        yield f"### {title}\n"
        yield from _part(schema)
        for name, part in schema.get("$defs", {}).items():
            if "properties" in part and name not in ("Figure", "Source"):
                yield f"**{name}**: {_summary(part)}\n"
                yield from _part(part, described=True)


def _summary(part: Mapping[str, Any]) -> str:
    """What a part says of itself."""
    return _joined(re.split(r"\n\n(?:Examples|Parameters|Attributes)\n", str(part.get("description", "")))[0])


def _part(part: Mapping[str, Any], described: bool = False) -> Iterator[str]:
    """Fields of one part."""
    if not described:
        yield f"{_summary(part)}\n"
    yield from ["| field | type | default |", "|---|---|---|"]
    required = part.get("required", [])
    for name, field in part["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_cell(_type(field))} | {_cell(default)} |"
    yield ""


def _default(field: Mapping[str, Any]) -> str:
    """A field's default as YAML would have it."""
    value = field.get("default")
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, dict):
        return "as below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(field: Mapping[str, Any]) -> str:
    """A field's type in words."""
    if "$ref" in field:
        return f"*{field['$ref'].rpartition('/')[2]}*"
    for joint in ("anyOf", "oneOf", "allOf"):
        if joint in field:
            return " or ".join(_type(part) for part in field[joint] if part.get("type") != "null")
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type", "any")
    if kind == "array":
        inner = field.get("prefixItems") or [field.get("items", {})]
        return f"list of {', '.join(dict.fromkeys(_type(item) for item in inner))}"
    if kind == "object":
        inside = field.get("additionalProperties")
        return f"mapping to {_type(cast('dict[str, Any]', inside))}" if isinstance(inside, dict) else "mapping"
    return " ".join([kind, *(f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field)])


def _joined(text: str) -> str:
    """One line of a text."""
    return " ".join(inspect.cleandoc(text).split())


def _cell(text: str) -> str:
    """A text that does not end its cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
