"""The gradient log: the one contract between a trainer (ours or another's) and the diagnostics."""

from fspo.gradlog.log import GradLog, GradLogWriter, discard_from, read_files, read_log

__all__ = ["GradLog", "GradLogWriter", "discard_from", "read_files", "read_log"]
