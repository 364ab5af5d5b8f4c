"""Tasks: what data are to be learnt for. One file each; this folder is their registry, so a new file is a new task."""

from surd.tasks.task import PairTask, Task, TextTask, guess, named, names, pair_tasks, text_tasks

__all__ = ["PairTask", "Task", "TextTask", "guess", "named", "names", "pair_tasks", "text_tasks"]
