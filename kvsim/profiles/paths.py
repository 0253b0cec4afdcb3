"""Where the data folders are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import Problem, ProfileError

PROFILE_FOLDERS = ("hardware_profiles", "models", "engine_profiles")
"""Data folders that hold profiles; ``scenarios`` and ``recipes`` stand beside them."""


def data_root() -> Path:
    """Folder that holds the data folders: profiles, ``scenarios/``, ``recipes/`` and ``calibrations/``.

    Returns
    -------
    Path
        ``kvsim/_data`` of an installed wheel, else the top of the checkout.

    Raises
    ------
    ProfileError
        Neither place has the data folders: the installation is incomplete.

    Examples
    --------
    >>> (data_root() / "hardware_profiles").is_dir()
    True
    """
    package = Path(__file__).resolve().parent.parent
    candidates = (package / "_data", package.parent)
    for root in candidates:
        if (root / PROFILE_FOLDERS[0]).is_dir():
            return root
    problem = Problem(str(package), "", "no data folders", " or ".join(str(c / PROFILE_FOLDERS[0]) for c in candidates))
    raise ProfileError("kvsim's data folders are missing: the installation is incomplete", [problem])
