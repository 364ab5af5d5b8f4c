"""Fields: what a configuration of somebody else holds under a name, where reading it may run code that raises."""

from typing import Any


def field(holder: object, name: str, otherwise: Any = None) -> Any:
    """The value, or another where there is none; a field that refuses to be read holds none.

    Configurations whose layers differ, such as Gemma 4's, raise where a number of one layer is asked of the whole.
    """
    try:
        return getattr(holder, name, otherwise)
    except Exception:
        return otherwise


def refuses(holder: object, name: str) -> bool:
    """Whether there is such a field, and reading it raises."""
    try:
        getattr(holder, name, None)
    except Exception:
        return True
    return False
