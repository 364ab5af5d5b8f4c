"""The softmax of attention: exact statistics of its rows in one pass over the keys, and what theory expects of them."""
