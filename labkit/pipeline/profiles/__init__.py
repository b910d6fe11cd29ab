"""Measured time and energy of every stage by clock, and what a choice of clocks costs."""
