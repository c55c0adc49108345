"""Load on a tool server, and what it did: a realistic mix, its driver, a chart."""
