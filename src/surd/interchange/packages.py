"""Packages of others: whether they are there, and in which version, without importing them."""

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """The version of an installed package, None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
