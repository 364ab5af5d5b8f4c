"""Commands: one file each, thin: read the words, call the library, show what came back."""
