"""Typed dataclasses from a YAML file and the command line, and back to YAML.

jsonargparse parses, checks types and prints the help; here its errors become one line with the nearest right name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fspo.base.errors import UserError, unknown_name
from fspo.base.files import write_text

ConfigT = TypeVar("ConfigT")

WRONG_VALUE = re.compile(r'Parser key "([\w.\-]+)": (.*)(?:Got value|Given value): (.*)$')
"""jsonargparse's complaint about a value, in one line: the key, why, the value."""


def parse(cls: type[ConfigT], args: Sequence[str] | None, *, prog: str, description: str) -> ConfigT:
    """Build a configuration dataclass from a command line with an optional ``--config FILE``.

    Raises
    ------
    UserError
        Unknown keys (with the nearest right name), wrong types, impossible values.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    from fspo.base.command_line import HelpFormatter

    parser = ArgumentParser(
        prog=prog,
        description=description,
        usage=f"{prog} [--config FILE] [--OPTION VALUE ...]",
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file; the command line wins over it")
    parser.add_class_arguments(cls, None)
    try:
        namespace = parser.parse_args(args)
        namespace.pop("config", None)
        _check_groups(cls, namespace)
        return cls(**_values(cls, parser.instantiate(namespace)))
    except UserError:
        raise
    except (ArgumentError, ValueError, TypeError) as error:
        raise UserError(_explain(" ".join(str(error).split()), cls)) from error


def _check_groups(cls: type, namespace: Any, prefix: str = "") -> None:
    """Refuse ``batch: 3`` where ``batch`` is a group of options; jsonargparse stumbles over it."""
    for name, hint in get_type_hints(cls).items():
        if is_dataclass(hint):
            value = getattr(namespace, name)
            if not hasattr(value, "__dict__"):
                raise UserError(
                    f"{prefix}{name} is {value!r}, but it is a group of options: set {prefix}{name}.<option>"
                )
            _check_groups(hint, value, f"{prefix}{name}.")  # type: ignore[arg-type]


def _values(cls: type, namespace: Any) -> dict[str, Any]:
    return {f.name: getattr(namespace, f.name) for f in fields(cls)}


def option_names(cls: type, prefix: str = "") -> list[str]:
    """Dotted names of every option of a configuration dataclass."""
    names = []
    for name, hint in get_type_hints(cls).items():
        names.append(prefix + name)
        if is_dataclass(hint):
            names += option_names(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return names


def _explain(message: str, cls: type) -> str:
    names = option_names(cls)
    if match := re.search(r"unrecognized arguments?: --([\w.\-]+)", message, re.IGNORECASE):
        return str(unknown_option(match[1], names))
    if match := re.search(r"Group '([\w.]+)' does not accept option '([\w.\-]+)'", message, re.IGNORECASE):
        return str(unknown_option(f"{match[1]}.{match[2]}", names))
    if match := re.search(r"(?:Key|option) '([\w.\-]+)' is not (?:expected|accepted)", message, re.IGNORECASE):
        return str(unknown_option(match[1], names))
    if match := WRONG_VALUE.match(message):
        key, why, value = match[1], match[2], match[3].strip("'")
        if nested := re.search(r"NestedArg\(key='(\w+)', val='?(.*?)'?\)$", value):
            key, value = f"{key}.{nested[1]}", nested[2]
        elif "import path" in why:
            return f"{key} is {value!r}, but it is a group of options: set {key}.<option>"
        if choices := re.search(r"Literal\[([^\]]*)\]", why):
            return str(unknown_name(f"value of {key}:", value, re.findall(r"'([^']*)'", choices[1])))
        if found := wrong_value(key, why, value):
            return found
    if match := re.search(r"File does not exist: (.*)", message):
        return f"cannot read the configuration file {match[1]}: give the path of a YAML file"
    return message


def wrong_value(key: str, why: str, value: str) -> str | None:
    """What to give in the place of a value of the wrong type; None if ``why`` does not name a type."""
    kinds = dict.fromkeys(re.findall(r"Expected an? (?:<class '(\w+)'>|([\w.\[\], ]+?))(?= -|\.|$| Given)", why))
    wanted = [kind for pair in kinds for kind in pair if kind and kind != "NoneType"]
    if not wanted:
        return None
    if wanted[0] in {"list", "tuple"}:
        return f"{key} is {value!r}: give a list in brackets, such as '[{value.strip('[]() ')}]'"
    return f"{key} is {value!r}: give a value of type {' or '.join(wanted)}"


def unknown_option(name: str, names: Sequence[str]) -> UserError:
    """The error for an option that does not exist; siblings are tried before all names."""
    group = name.rpartition(".")[0]
    siblings = [n for n in names if n.rpartition(".")[0] == group]
    error = unknown_name("option", name, siblings or list(names))
    if "did you mean" in str(error) or not siblings:
        return error
    wide = str(unknown_name("option", name, list(names)))
    return UserError(wide.split("choose from")[0].rstrip() + f" options here: {', '.join(siblings)}")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values of a configuration, for config.yaml (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return plain(asdict(config))


def save(config: Any, path: Path) -> None:
    """Write the resolved configuration as YAML, whole or not at all."""
    import yaml

    write_text(path, yaml.safe_dump(to_dict(config), sort_keys=False))
