"""From what people have, and back: launch commands, start-up logs and metrics of engines."""

from __future__ import annotations

from kvsim.interop.exporting import LaunchLine, export_command
from kvsim.interop.importing import ImportedCommand, ImportOptions, import_command

__all__ = ["ImportOptions", "ImportedCommand", "LaunchLine", "export_command", "import_command"]
