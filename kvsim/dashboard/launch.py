"""Start the dashboard's server."""

from __future__ import annotations

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
        Exit code of the server; 0 when it was stopped, 1 when the port is taken.

    Raises
    ------
    KvsimError
        Streamlit or Plotly is not installed.
    """
    missing = [name for name in ("streamlit", "plotly") if find_spec(name) is None]
    if missing:
        raise KvsimError("the dashboard cannot start", [
            Problem("kvsim app", name, "", "the package's extra: pip install 'kvsim[dashboard]'") for name in missing])
    from streamlit.web.cli import main

    # In this process, not in one below it, so that whatever stops this one stops the server.
    try:
        main(arguments(port), standalone_mode=False)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def arguments(port: int) -> list[str]:
    """What Streamlit is called with.

    Examples
    --------
    >>> arguments(8501)[2:]
    ['--server.port=8501', '--server.address=127.0.0.1', ...]
    """
    return [
        "run", str(script()), f"--server.port={port}", f"--server.address={ADDRESS}", "--server.headless=true",
        "--server.fileWatcherType=none", "--browser.gatherUsageStats=false",
        "--client.toolbarMode=viewer",
    ]


def script() -> Path:
    """``app.py`` of a checkout; in an installed package, which has none, the module that ``app.py`` calls."""
    own = Path(__file__).resolve().with_name("entry.py")
    beside = own.parent.parent.parent / "app.py"
    return beside if data_root() == beside.parent and beside.is_file() else own
