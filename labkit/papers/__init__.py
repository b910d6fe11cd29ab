"""A paper's own code: what one notebook alone needs.

Two users, or it lives with its paper: a module here is called from one notebook and its tests. It
imports engines, never another paper. What a second paper, a command or the documented API needs
moves to an engine.
"""
