"""Runs: the folder of a trained model, and text in, text out with what it holds."""

from surd.run.folder import Run, built_model
from surd.run.place import refuse_occupied, runs_in

__all__ = ["Run", "built_model", "refuse_occupied", "runs_in"]
