"""``labkit mcp``: engines and claims as an assistant's tools, read-only and on this machine."""
