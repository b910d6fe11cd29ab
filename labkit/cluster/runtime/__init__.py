"""Tasks of milliseconds: a two-level scheduler, and a runtime that recovers by lineage."""
