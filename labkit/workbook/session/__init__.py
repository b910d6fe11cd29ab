"""A session of the reading group: Lab's start page, the deck with live figures, one server."""
