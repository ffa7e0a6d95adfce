"""A loader of YAML that refuses what the YAML library would take in silence."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError


class StrictLoader(yaml.SafeLoader):
    """A loader of YAML that refuses a name that stands twice in one mapping, and aliases (``*name``).

    The YAML library would keep the last of two values without a word. By aliases a short file can hold itself, or stand
    for a value too large for memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node of the YAML document as SafeLoader does, with the same arguments; raise ComposerError for an
        alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "an alias stands for another value: write it out", mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping of the YAML document as SafeLoader does; raise ComposerError if it holds a name twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):  # jsonargparse refuses other keys
                if key.value in seen:
                    raise ComposerError(None, None, f"{key.value!r} stands twice: keep one", key.start_mark)
                seen.add(key.value)
        return node
