"""Tasks: what a pair of texts is. One file each; this folder is their registry, so a new file is a new task."""

from surd.tasks.task import Task, guess, named, names

__all__ = ["Task", "guess", "named", "names"]
