"""The formats and trainers of others, one file each; none of them is imported before it is asked for."""
