"""One document of a run in a browser: edit its tokens, patch activations, and see answers, map and verdict change."""
