"""The tables that an analysis writes, one module each, and how they are written."""
