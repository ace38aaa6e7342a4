"""mecheval."""
