"""Plans: bytes at every moment, what fits, and many plans at once."""
