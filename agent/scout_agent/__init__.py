"""The episode loop outside the trainer, the policies that can play in it, and the tool client."""
