"""Moved to `kvsim.engine.case`: a case carries an engine's settings, and workloads stand below engines."""

from kvsim.engine.case import Answer, AnswerRow, EngineCase, HostTier, read_case

__all__ = ["Answer", "AnswerRow", "EngineCase", "HostTier", "read_case"]
