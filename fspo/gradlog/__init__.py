"""The gradient log: the file format by which a trainer (this one or another) hands its responses to `fspo analyse`."""

from fspo.gradlog.log import GradLog, GradLogWriter, discard_from, gone_rule, header_rule, read_files, read_log
