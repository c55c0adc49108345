"""Scout's search as a tool of verl-tool's own server, for those who run that one."""
