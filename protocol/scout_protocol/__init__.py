"""The words of Scout: tags, turns, observations, prompts, HTTP bodies and records. No I/O."""
