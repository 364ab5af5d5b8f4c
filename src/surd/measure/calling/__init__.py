"""Calling a module that is somebody else's: with what, how, and leaving it as it was."""
