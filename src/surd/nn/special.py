"""The four token ids that every vocabulary of surd begins with."""

PAD = 0
"""Fills the cells of a padded view; never read as a token, never predicted."""
BOS = 1
"""What the decoder reads before the first target token."""
EOS = 2
"""Ends every source and every target."""
UNK = 3
"""Stands for a symbol outside the vocabulary."""

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
"""Their spellings, in the order of their ids."""
