"""Runs: the folder of a trained model, and text in, text out with what it holds."""

from surd.run.folder import Run, refuse_occupied, runs_in

__all__ = ["Run", "refuse_occupied", "runs_in"]
