"""The lab: questions about the scales of a Transformer, each answered by a prediction, a measurement and a verdict."""

from surd.lab.experiment import Experiment, named, names, run

__all__ = ["Experiment", "named", "names", "run"]
