"""Search backends: each one turns queries into documents behind the same small interface."""
