"""Measurements: the server beside its peer, and BM25 at a million passages."""
