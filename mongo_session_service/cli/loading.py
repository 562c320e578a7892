"""Functions that are named on the command line: ``MODULE:FUNCTION``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from mongo_session_service.cli.terminal import SEE_WHERE, printable


def loaded(text: str) -> Callable[..., Any]:
    """The function with this name; modules of the current directory are found, too.

    Raises:
        BadParameter: it is not such a name, or there is none.
        ClickException: its module fails when it is imported.
    """
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        message = f"{text!r} is not MODULE:FUNCTION, such as my_app.name:function."
        raise click.BadParameter(message)
    found = _imported(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            near = get_close_matches(name, vars(found), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            message = f"{module_name!r} has no {name!r}.{hint}"
            raise click.BadParameter(message)
        found = getattr(found, name)
    if not callable(found):
        raise click.BadParameter(f"{text!r} is not a function.")
    return found  # type: ignore[no-any-return]


def _imported(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            message = (
                f"There is no module {name!r}, neither installed nor in the current"
                " directory."
            )
            raise click.BadParameter(message) from None
        what = f"{type(error).__name__}: {printable(str(error))}"
        message = f"Module {name!r} cannot be imported: {what}. {SEE_WHERE}"
        raise click.ClickException(message) from error
