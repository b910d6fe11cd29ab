"""Clocks for a given schedule: seven planners on one interface, and the bound beneath them."""
