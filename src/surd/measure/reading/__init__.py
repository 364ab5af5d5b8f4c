"""Reading the trace of a forward: factors, multipliers, streams, layouts, gradients, and what stayed unseen."""
