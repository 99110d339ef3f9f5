"""Nested frozen dataclasses as plain dictionaries and back, strictly: what YAML, JSON and checkpoints hold."""

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from alltokens.errors import UserError, did_you_mean

Config = TypeVar("Config")

KIND = "kind"
"""The key that names the class where a field may hold one of several."""

WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


def to_plain(config: Any) -> dict[str, Any]:
    """Dictionaries, lists, numbers and text only; a value that could be of several classes says its `kind`."""
    hints = get_type_hints(type(config))
    return {field.name: plain_value(getattr(config, field.name), hints[field.name]) for field in fields(config)}


def from_plain(config_class: type[Config], data: Any, key: str = "") -> Config:
    """The config the dictionary describes; an unknown key, kind or type is an error that names the dotted key."""
    if not isinstance(data, dict):
        raise UserError(f"{key or config_class.__name__} must be a mapping; got {data!r}")
    known = {field.name: field for field in fields(config_class)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise UserError(f"unknown key '{dotted(key, name)}'{did_you_mean(str(name), known)}")
    for name, field in known.items():
        if name not in data and is_required(field):
            raise UserError(f"missing key '{dotted(key, name)}': {config_class.__name__} needs it")
    hints = get_type_hints(config_class)
    return config_class(**{name: read(hints[name], value, dotted(key, name)) for name, value in data.items()})


def plain_value(value: Any, hint: Any) -> Any:
    """One field's value, or one element of it."""
    if is_dataclass(value):
        tag = {KIND: type(value).__name__} if len(config_classes(hint)) > 1 else {}
        return tag | to_plain(value)
    if isinstance(value, tuple):
        hints = elements(hint, value)
        return [plain_value(element, hints[index]) for index, element in enumerate(value)]
    return value


def read(hint: Any, value: Any, key: str) -> Any:
    """The value as its type hint wants it."""
    if get_origin(hint) in (Union, UnionType):
        return read_union(hint, value, key)
    if get_origin(hint) is Literal:
        return read_literal(get_args(hint), value, key)
    if get_origin(hint) is tuple:
        return read_tuple(hint, value, key)
    if is_dataclass(hint):
        return from_plain(hint, value, key)  # type: ignore[arg-type]
    if hint is float and type(value) is int:
        return float(value)
    # Exactly the type, because True is an int to Python and not to whoever wrote the file.
    if type(value) is not hint:
        raise UserError(f"{key} must be {WORDS[hint]}; got {value!r}{written_as_text(hint, value)}")
    return value


def read_union(hint: Any, value: Any, key: str) -> Any:
    """None, one of several dataclasses by its kind, or the one other member."""
    members = get_args(hint)
    if value is None and NoneType in members:
        return None
    classes = config_classes(hint)
    if len(classes) > 1:
        return read_kind(classes, value, key)
    others = [member for member in members if member is not NoneType]
    assert len(others) == 1, f"{key} mixes types that a plain value cannot tell apart: {hint}"
    return read(others[0], value, key)


def read_kind(classes: dict[str, type], value: Any, key: str) -> Any:
    """The dataclass that `kind` names."""
    choices = one_of(classes)
    if not isinstance(value, dict) or KIND not in value:
        raise UserError(f"{key} must be a mapping with a kind, {choices}; got {value!r}")
    kind = value[KIND]
    # A list or mapping has no hash to look up.
    if not isinstance(kind, str) or kind not in classes:
        raise UserError(f"{key}.{KIND} must be {choices}; got {kind!r}{did_you_mean(str(kind), classes)}")
    return from_plain(classes[kind], {name: entry for name, entry in value.items() if name != KIND}, key)


def read_literal(choices: tuple[Any, ...], value: Any, key: str) -> Any:
    """One of the listed values."""
    if value not in choices:
        words = [str(choice) for choice in choices]
        raise UserError(f"{key} must be {one_of(words)}; got {value!r}{did_you_mean(str(value), words)}")
    return value


def read_tuple(hint: Any, value: Any, key: str) -> tuple[Any, ...]:
    """A list of the right length and types."""
    if not isinstance(value, list | tuple):
        raise UserError(f"{key} must be a list; got {value!r}")
    hints = elements(hint, value)
    if len(hints) != len(value):
        raise UserError(f"{key} must be a list of {len(hints)}; got {value!r}")
    return tuple(read(hints[index], element, f"{key}[{index}]") for index, element in enumerate(value))


def elements(hint: Any, value: Any) -> list[Any]:
    """A type hint for each element of a tuple: `tuple[int, ...]` has as many as there are values."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(member for member in get_args(hint) if get_origin(member) is tuple)
    hints = get_args(hint)
    return [hints[0]] * len(value) if hints[-1] is Ellipsis else list(hints)


def config_classes(hint: Any) -> dict[str, type]:
    """The dataclasses among the members of a union, by name."""
    return {member.__name__: member for member in get_args(hint) if is_dataclass(member) and isinstance(member, type)}


def is_required(field: "Field[Any]") -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def dotted(key: str, name: object) -> str:
    """`stem` and `kernels` make `stem.kernels`."""
    return f"{key}.{name}" if key else str(name)


def one_of(words: Iterable[str]) -> str:
    """`one of a, b, c`."""
    return f"one of {', '.join(words)}"


def written_as_text(hint: Any, value: Any) -> str:
    """YAML 1.1 reads 1e-5 as text, which surprises everyone once."""
    try:
        number = float(value) if hint is float and isinstance(value, str) else None
    except ValueError:
        number = None
    return "" if number is None else "; YAML takes a number with a point and no quotes, such as 1.0e-5"
