"""A ``config.json`` on disk as the text of a model profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import yaml

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.huggingface import import_config
from kvsim.profiles.store import load_text


def import_file(path: Path, name: str | None = None) -> str:
    """YAML text of the model profile that a ``config.json`` describes; checked before it is returned.

    Parameters
    ----------
    path : Path
        The config file.
    name : str, optional
        Name of the profile; made from the file's (or its folder's) name by default.

    Raises
    ------
    ProfileError
        The file cannot be read, is not JSON, or describes something that kvsim does not understand.
    """
    name = name or _name_of(path)
    text = yaml.safe_dump(import_config(_read_json(path), name, path.name), sort_keys=False, width=110)
    load_text(text, str(path))
    return text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(path.read_text())
    except OSError as err:
        reason = err.strerror or str(err)
        raise ProfileError("cannot read the config", [Problem(str(path), "", reason, "a config.json")]) from None
    except ValueError as err:
        raise ProfileError("the config is not JSON", [Problem(str(path), "", str(err), "a JSON object")]) from None
    if not isinstance(data, dict):
        problem = Problem(str(path), "", type(data).__name__, "a JSON object with model_type")
        raise ProfileError("the config is not a mapping", [problem])
    return cast("dict[str, Any]", data)


def _name_of(path: Path) -> str:
    stem = path.resolve().parent.name if path.stem == "config" else path.stem
    return re.sub(r"[^a-z0-9.\-]+", "-", stem.lower()).strip("-.") or "imported"
