"""Training: one step, the loop around it, and what is kept on disk."""
