"""Schedules: instructions in order on every device, by name, from a table, or in torch's format."""
