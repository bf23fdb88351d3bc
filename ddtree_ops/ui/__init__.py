"""Tables, diffs, progress and JSON for people and programs."""
