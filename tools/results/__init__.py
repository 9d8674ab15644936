"""Measure, and write docs/results, the pages about it and the README's table: `python -m tools.results`."""
