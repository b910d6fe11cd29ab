"""What all tests share: examples that are the same in every run, on machines slow or fast."""

from __future__ import annotations

from hypothesis import settings

# A search that draws anew each time finds more over the months, but it fails the wrong change.
# `pytest --hypothesis-profile=explore` draws anew.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("same")
