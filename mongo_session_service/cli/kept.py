"""Kept options: they may stand before or after the name of a subcommand."""

from __future__ import annotations

import functools
from typing import Any, Final

import click

_META: Final = "mongo-session-service"


def said(context: click.Context, name: str) -> Any:
    """The value of a kept option, wherever it stands on the command line."""
    return context.meta.get(f"{_META}.{name}")


def keep(context: click.Context, name: str, value: Any) -> None:
    """Keep a value for the commands of this command line."""
    context.meta[f"{_META}.{name}"] = value


def _keep_given(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        keep(context, str(parameter.name), value)


kept_option: Final = functools.partial(
    click.option, expose_value=False, callback=_keep_given
)
