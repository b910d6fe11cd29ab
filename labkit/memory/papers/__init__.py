"""The papers' own numbers beside ours."""
