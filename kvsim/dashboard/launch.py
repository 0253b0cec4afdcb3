"""Start the dashboard's server."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from kvsim.errors import KvsimError, Problem
from kvsim.profiles.paths import data_root

ADDRESS = "127.0.0.1"
"""The loopback: the dashboard has no users and no passwords, so only this machine may reach it."""


def launch(port: int) -> int:
    """Run the dashboard until it is stopped.

    Parameters
    ----------
    port : int
        TCP port on the loopback, 1 to 65535.

    Returns
    -------
    int
        Exit code of the server; 0 when it was stopped from the keyboard.

    Raises
    ------
    KvsimError
        Streamlit or Plotly is not installed.
    """
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise KvsimError("the dashboard cannot start", [
            Problem("kvsim app", name, "", "the package's extra: pip install 'kvsim[dashboard]'") for name in missing])
    try:
        return subprocess.run(command(port), check=False).returncode
    except KeyboardInterrupt:
        return 0


def command(port: int) -> list[str]:
    """The server's command line.

    Examples
    --------
    >>> command(8501)[1:4]
    ['-m', 'streamlit', 'run']
    """
    return [
        sys.executable, "-m", "streamlit", "run", str(script()), f"--server.port={port}",
        f"--server.address={ADDRESS}", "--server.headless=true", "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false", "--client.showSidebarNavigation=false",
        "--client.toolbarMode=viewer",
    ]


def script() -> Path:
    """``app.py`` of a checkout; in an installed package, which has none, the module that ``app.py`` calls."""
    own = Path(__file__).resolve().with_name("entry.py")
    beside = own.parent.parent.parent / "app.py"
    return beside if data_root() == beside.parent and beside.is_file() else own
