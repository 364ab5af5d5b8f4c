"""The rules, one file each; this folder is their registry, so a new file is a new rule."""
