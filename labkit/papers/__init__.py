"""What one paper alone needs: a module a paper, named by its key in the reading queue.

A module here imports the ground floor, the kit and the engines, never another paper. Only the
paper's notebook and its tests import it. What a second paper, a command or another engine needs
moves to an engine; ``tests/test_users.py`` counts who uses each public name of the engines.
"""
