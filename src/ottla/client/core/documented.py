"""One docstring for both faces of a client: the blocking one is told by its async twin. Pure."""

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=type)


def documented_by(twin: type) -> Callable[[F], F]:
    """Gives every public method of a class that says nothing of itself the docstring of its twin's, without await."""

    def document(face: F) -> F:
        for base in face.__mro__:
            for name, member in vars(base).items():
                method: Any = getattr(member, "__func__", member)
                if name.startswith("_") or not isinstance(method, FunctionType) or method.__doc__:
                    continue
                text = getattr(getattr(twin, name, None), "__doc__", None)
                if text is not None:
                    method.__doc__ = re.sub(r"\b(?:await|async) ", "", text)
        return face

    return document
