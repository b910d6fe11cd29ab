"""Plans compared, accounted for and put under stress: stragglers, slow switches, jitter."""
