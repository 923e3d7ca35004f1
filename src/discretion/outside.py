"""Code from outside the package, named as `package.module:function`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from discretion.errors import InputError


def is_outside(name: str) -> bool:
    """Return whether a name means code outside the package: `package.module:function`."""
    return ":" in name


def load(name: str, problem: type[InputError]) -> Any:
    """Import and return what `package.module:function` names; raise `problem` where there is no such thing.

    The current folder is searched after all installed packages, so that none of its files can replace one.

    Guarantees:
        Importing runs the module's code, so the name must come from the person at this machine: a guard
        looks a name that a message brings up in its own policy before it gets here.
    """
    module, _, function = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise problem(
            f"{name!r} cannot be imported: {type(error).__name__}: {error}. Write package.module:function, "
            "and start in the folder that holds the package, install it, or put its folder on PYTHONPATH."
        ) from error
    except Exception as error:
        raise problem(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
