"""The loops that run a trace: events for priorities, rounds for allocators, rounds for shares."""
