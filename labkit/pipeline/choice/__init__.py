"""The joint choice of schedule, in-flight cap and clocks under memory and deadline."""
