"""Command-line flags from a dataclass, with the errors of its own checks as plain sentences."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any, TypeVar

import tyro
from tyro.conf import AvoidSubcommands, FlagConversionOff, PositionalMetavarFromFieldName

from alltokens.errors import UserError

Config = TypeVar("Config")


def parse(
    config_class: type[Config], arguments: Sequence[str], program: str, default: Any = tyro.MISSING_NONPROP
) -> Config:
    """The dataclass with the flags applied; a field that may be of several classes keeps the default's."""
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            return tyro.cli(
                config_class,
                prog=program,
                args=arguments,
                default=default,
                config=(AvoidSubcommands, FlagConversionOff, PositionalMetavarFromFieldName),
            )
    except SystemExit as end:
        mistake = user_error(end)
        if mistake is not None:
            raise mistake from None
        sys.stderr.write(printed.getvalue())
        raise


def user_error(end: BaseException) -> UserError | None:
    """The config's own complaint, which tyro catches and prints in its words, from the chain of exceptions."""
    link: BaseException | None = end
    while link is not None and not isinstance(link, UserError):
        link = link.__context__
    return link
