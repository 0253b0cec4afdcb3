"""Build hook: the wheel carries the top-level data folders inside the package.

In a checkout the folders stay at the top, where people look for them; installed from a wheel they are
``kvsim/_data/<folder>``. An editable install adds nothing, since it reads the checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA_FOLDERS = ("hardware_profiles", "models", "engine_profiles", "scenarios", "recipes", "calibrations")


class DataFoldersHook(BuildHookInterface):
    """Maps each data folder that exists to its place in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the wheel is written."""
        if version == "editable":
            return
        root = Path(self.root)
        folders = [name for name in DATA_FOLDERS if (root / name).is_dir()]
        build_data["force_include"].update({str(root / name): f"kvsim/_data/{name}" for name in folders})
