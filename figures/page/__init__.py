"""The report on runs or on a reproduction, as one self-contained HTML page."""
