"""What a run will need before it starts: memory by part, and time. Arithmetic only."""
