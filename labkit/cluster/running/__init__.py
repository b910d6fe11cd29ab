"""What then happens: events, rounds, turns; bounds that no policy beats; published traces."""
