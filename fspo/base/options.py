"""Configuration dataclasses: read from a YAML file and the command line, and written back to YAML.

jsonargparse parses, checks types and prints the help. This module turns its errors into one line that suggests the
nearest known name.
"""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from fspo.base.command_line import WRONG_VALUE, HelpFormatter, dashed, on_command_line, rewritten, wrong_value
from fspo.base.errors import UserError, unknown_name
from fspo.base.files import write_text

ConfigT = TypeVar("ConfigT")
ALL = "all"
"""The word after ``--help`` that shows the options of all groups instead of one."""


def make_parser(cls: type, prog: str, description: str) -> ArgumentParser:
    """Build the parser of a configuration dataclass: one option for each field, and ``--config FILE``."""
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
    return parser


def parse(cls: type[ConfigT], args: Sequence[str] | None, parser: ArgumentParser | None = None) -> ConfigT:
    """Build a configuration dataclass from a command line with an optional ``--config FILE``.

    Parameters
    ----------
    args : sequence of str, optional
        The command line; by default the program's.
    parser : ArgumentParser, optional
        The command's parser, made by `make_parser`. Only ``--help`` needs it: the default lacks the command's name and
        description.

    Raises
    ------
    UserError
        For an unknown option (the message suggests the nearest known one), a wrong type, an impossible value, or a
        file that is not a mapping of options to values or names an option twice.
    """
    parser = parser or make_parser(cls, "", "")
    given = sys.argv[1:] if args is None else args
    for word, following in pairwise([*given, ""]):
        if word in ("-h", "--help"):
            _show_help(parser, cls, "" if following.startswith("-") else following)
    words = _checked_words(rewritten(parser, given), cls)
    try:
        namespace = parser.parse_args(words)
        namespace.pop("config", None)
        _check_values(cls, namespace)
        return cls(**_values(cls, parser.instantiate(namespace)))
    except UserError:
        raise
    except (ArgumentError, ValueError, TypeError) as error:
        raise UserError(_explain(" ".join(str(error).split()), cls, given)) from error


def _show_help(parser: ArgumentParser, cls: type, part: str) -> NoReturn:
    """Print the help and end the program.

    If ``part`` is the name of a group, the help explains the options of this group; if it is "all", all options. If
    ``part`` is empty, the help explains the options outside groups and lists the names of the options in each group.
    """
    groups = {name: hint for name, hint in get_type_hints(cls).items() if is_dataclass(hint)}
    if part and part not in (*groups, ALL):
        raise unknown_name("group of options", part, [*groups, ALL])
    if part != ALL and groups:
        for action in parser._actions:
            top = action.dest.partition(".")[0]
            if (top != part) if part else (top in groups):
                action.help = SUPPRESS
        lines = [
            f"Options in groups are written --GROUP.NAME; {parser.prog} --help GROUP explains those of a group,",
            f"{parser.prog} --help {ALL} all options.",
        ]
        for name, hint in groups.items() if not part else ():
            options = option_names(hint)  # type: ignore[arg-type]
            leaves = [dashed(one) for one in options if not any(other.startswith(f"{one}.") for other in options)]
            lines.append(fill(f"{name}: {', '.join(leaves)}", 100, subsequent_indent="    ", break_on_hyphens=False))
        parser.epilog = "\n".join(lines)
    parser.print_help()
    sys.exit(0)


def _checked_words(args: Sequence[str], cls: type) -> list[str]:
    """Return the command line with each ``--config FILE`` moved to the front and FILE replaced by the file's text.

    jsonargparse keeps the last of several values, so options on the command line win over those in files. The YAML of
    the files, and of values that begin with a bracket or a brace, is checked before jsonargparse reads it.
    """
    words: list[str] = []
    files: list[str] = []
    previous = ""
    for word in args:
        name, equals, value = word.partition("=")
        if previous == "--config":
            words.pop()
            files += ["--config", _file_text(word, cls)]
        elif name == "--config" and equals:
            files += ["--config", _file_text(value, cls)]
        else:
            given = value if equals and word.startswith("--") else word
            if given.startswith(("{", "[")):
                _check_yaml(given, f"{previous or name} {given[:40]}")
            words.append(word)
        previous = word
    return [*files, *words]


def _file_text(path: str, cls: type) -> str:
    """Return a configuration file's text after checking that it maps options to values and names no option twice."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"the configuration file {path!r} is no text in UTF-8: give the path of a YAML file") from None
    except (OSError, ValueError) as error:  # open() raises ValueError if the name holds a NUL character
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the configuration file {path!r} ({why}): give the path of a YAML file") from error
    root = _check_yaml(text, path)
    if root is None:
        return "{}"
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path} is no mapping of options to values: write lines such as `rollouts: 30`")
    _check_group(root, cls, path)
    return text


def _check_yaml(text: str, where: str) -> yaml.Node | None:
    """Parse a YAML text and return its root node; None for an empty text.

    The YAML library accepts a mapping that holds a key twice (it keeps the last value) and values that contain
    themselves. This function refuses such keys and values.

    Raises
    ------
    UserError
        If the text cannot be parsed, names a key twice, has a value that refers to itself, has a key that is a list or
        a mapping, or has a tag that is not one of plain YAML.
    """

    def walk(node: yaml.Node, around: tuple[yaml.Node, ...]) -> None:
        place = f"{where}, line {node.start_mark.line + 1}"
        if node.tag not in yaml.SafeLoader.yaml_constructors:
            raise UserError(f"{place}: the tag {node.tag!r} is not read: write a plain value")
        if any(node is one for one in around):
            raise UserError(f"{place}: a value refers to itself by its anchor: write it out")
        children: list[yaml.Node] = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise UserError(f"{place}: a name is no text: write NAME: VALUE")
                if key.value in seen and key.value != "<<":
                    raise UserError(f"{where}, line {key.start_mark.line + 1}: {key.value!r} stands twice: keep one")
                seen.add(key.value)
                children.append(value)
        for child in children:
            walk(child, (*around, node))

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            walk(root, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{where}{place}: it is no YAML ({why}): correct it") from error
    except RecursionError:
        raise UserError(f"{where}: its values are nested too deeply: write them flat") from None
    return root


def _check_group(node: yaml.MappingNode, cls: type, where: str, prefix: str = "") -> None:
    """Raise UserError for an option name that is a number, and for a group of options without a value (``batch:``).

    For a group without a value jsonargparse would silently use the defaults.
    """
    hints = get_type_hints(cls)
    for key, value in node.value:
        if not key.tag.endswith((":str", ":merge")):
            raise UserError(
                f"{where}, line {key.start_mark.line + 1}: {key.value!r} names no option: write NAME: VALUE"
            )
        if not is_dataclass(hint := hints.get(key.value)):
            continue
        if isinstance(value, yaml.MappingNode):
            _check_group(value, hint, where, f"{prefix}{key.value}.")  # type: ignore[arg-type]
        elif isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null"):
            raise UserError(
                f"{where}, line {key.start_mark.line + 1}: {prefix}{key.value} is empty, but it is a group of options: "
                f"leave it out, or set {prefix}{key.value}.<option>"
            )


def _check_values(cls: type, namespace: Any, prefix: str = "") -> None:
    """Raise UserError for values that jsonargparse accepts wrongly.

    Wrongly accepted are a plain value for a group of options (``batch: 3``), and null for an option that needs a value.
    """
    for name, hint in get_type_hints(cls).items():
        if getattr(namespace, name) is None and type(None) not in get_args(hint):
            raise UserError(f"{prefix}{name} is null: give it a value, or leave it out")
        if is_dataclass(hint):
            value = getattr(namespace, name)
            if not hasattr(value, "__dict__"):
                raise UserError(
                    f"{prefix}{name} is {value!r}, but it is a group of options: set {prefix}{name}.<option>"
                )
            _check_values(hint, value, f"{prefix}{name}.")  # type: ignore[arg-type]


def _values(cls: type, namespace: Any) -> dict[str, Any]:
    return {f.name: getattr(namespace, f.name) for f in fields(cls)}


def option_names(cls: type, prefix: str = "") -> list[str]:
    """Return the dotted names of all options of a configuration dataclass, groups included."""
    names = []
    for name, hint in get_type_hints(cls).items():
        names.append(prefix + name)
        if is_dataclass(hint):
            names += option_names(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return names


def _explain(message: str, cls: type, given: Sequence[str]) -> str:
    """Return jsonargparse's error message about the command line ``given`` in this program's words.

    The message names an option as ``--optim.learning-rate`` if ``given`` holds the option, else as
    ``optim.learning_rate``, the form of a configuration file.
    """
    names = option_names(cls)
    typed = {dashed(word.partition("=")[0]) for word in given}

    def unknown(name: str) -> str:
        plain = name.replace("-", "_")
        return str(unknown_option(plain, names, on_command_line if on_command_line(plain) in typed else str))

    def written(name: str) -> str:
        return option if (option := on_command_line(name)) in typed else name

    if match := re.search(r"unrecognized arguments?: ([^\s-]\S*)", message, re.IGNORECASE):
        return f"{match[1]!r} is no option: name it, for example --output {match[1]}"
    if match := re.search(r"unrecognized arguments?: --([\w.\-]+)", message, re.IGNORECASE):
        return unknown(match[1])
    if match := re.search(r"Group '([\w.]+)' does not accept option '([\w.\-]+)'", message, re.IGNORECASE):
        return unknown(f"{match[1]}.{match[2]}")
    if match := re.search(r"(?:Key|option) '([\w.\-]+)' is not (?:expected|accepted)", message, re.IGNORECASE):
        return unknown(match[1])
    if match := WRONG_VALUE.match(message):
        key, why, value = match[1], match[2], match[3].strip("'")
        if nested := re.search(r"NestedArg\(key='(\w+)', val='?(.*?)'?\)$", value):
            key, value = f"{key}.{nested[1]}", nested[2]
        elif "import path" in why:
            return f"{written(key)} is {value!r}, but it is a group of options: set {written(key)}.<option>"
        if choices := re.search(r"Literal\[([^\]]*)\]", why):
            return str(unknown_name(f"value of {written(key)}:", value, re.findall(r"'([^']*)'", choices[1])))
        if found := wrong_value(written(key), why, value):
            return found
    if match := re.search(r"Parser key \"([\w.]+)\": Unable to load config '([^']*)'", message):
        key = written(match[1])
        return (
            f"{key} is {match[2]!r}, but it is a group of options: set {key}.<option>, or give the path of a YAML file "
            "of them"
        )
    if match := re.fullmatch(r"argument (--\S+): expected one argument", message):
        option = dashed(match[1])
        return f"{option} lacks its value: write {option}=VALUE (so too where the value starts with '-')"
    return message


def unknown_option(name: str, names: Sequence[str], written: Callable[[str], str]) -> UserError:
    """Build the error for an option that does not exist.

    The message suggests existing options with the same last part (``optim.seed`` -> ``seed``). If there are none, it
    suggests the nearest name in the same group. ``written`` turns a name into the form in which the user writes it.
    """
    group, _, leaf = name.rpartition(".")
    if same := [n for n in names if n.rpartition(".")[2] == leaf]:
        return UserError(
            f"unknown option {written(name)!r}: did you mean {' or '.join(repr(written(n)) for n in same[:3])}?"
        )
    siblings = [n for n in names if n.rpartition(".")[0] == group]
    error = unknown_name("option", name, siblings or list(names), written)
    if "did you mean" in str(error) or not siblings:
        return error
    wide = str(unknown_name("option", name, list(names), written))
    return UserError(wide.split("choose from")[0].rstrip() + f" options here: {', '.join(map(written, siblings))}")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dicts of plain values, for config.yaml (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return plain(asdict(config))


def save(config: Any, path: Path) -> None:
    """Write the resolved configuration as YAML; an error leaves no half-written file."""
    write_text(path, yaml.safe_dump(to_dict(config), sort_keys=False))
