"""Functions that a file names, "module:function": found, and called so that errors are attributed to user code."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.errors import TrainError
from cloud.train.jobs.sections import need
from federated.tables import closest
from lite_runtime.errors import MsedgeError

__all__ = ["called", "named_function"]


def named_function(text: str, folder: Path, key: str) -> Callable[..., Any]:
    """The function that "module:function" names; modules are looked for in `folder` too.

    Raises TrainError, which names `key`; calling the function also raises TrainError for whatever it raises itself.
    """
    module, colon, name = text.partition(":")
    need(bool(colon and module and name), key, '"module:function"', text)
    held = vars(_module(module, folder, key))
    found = held.get(name)
    if found is None:
        there = [name for name, each in held.items() if getattr(each, "__module__", "") == module]
        raise TrainError(f"{key}: module {module!r} has no {name!r}{closest(name, there) if there else ''}")
    if not callable(found):
        raise TrainError(f"{key}: expected a function {name!r} in module {module!r}, got {type(found).__name__}")

    @functools.wraps(found)
    def run(*arguments: Any, **named: Any) -> Any:
        try:
            return found(*arguments, **named)
        except MsedgeError:
            raise
        except Exception as error:  # user code: a function that the job names
            raise TrainError(f"{key}: {text} failed: {_words(error)}") from error

    return run


def called(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> Any:
    """`function(**options)`. Raises TrainError for options that it does not take."""
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters) or "none"
        raise TrainError(f"{where}.options: {error}; {function.__name__} takes {known}") from error
    try:
        return function(**options)
    except MsedgeError:
        raise
    except Exception as error:  # user code: a function that the job names
        raise TrainError(f"{where}.options: {function.__name__} does not take these values: {error}") from error


def _module(name: str, folder: Path, key: str) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except MsedgeError:
        raise
    except Exception as error:  # user code: a module that the job names
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            where = f"in {str(folder)!r} or on Python's search path"
            raise TrainError(f"{key}: there is no module {name!r} {where}") from error
        raise TrainError(f"{key}: importing {name!r} failed: {_words(error)}") from error
    finally:
        sys.path.remove(str(folder))


def _words(error: Exception) -> str:
    """The error, and the last source line that was reached."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    said = f"{type(error).__name__}: {error}"
    return said if isinstance(error, SyntaxError) else said + place
