"""Nothing launches on hope: what a training run needs, checked in seconds before it starts."""
