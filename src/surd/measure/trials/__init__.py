"""Trials: a module is called again with one thing changed, and what changes with it is told."""
