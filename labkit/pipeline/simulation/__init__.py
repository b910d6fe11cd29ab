"""What an iteration of a schedule takes: durations, messages, timelines, memory, traces."""
