"""The Transformer's functions, layers and parts: each family in one file, each equation a free function."""
