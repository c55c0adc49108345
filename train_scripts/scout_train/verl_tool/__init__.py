"""The engine ``verl_tool``: the same recipes on verl-tool's trainer and agent loop (vendored verl 0.7.0.dev).

`paths` and `keys` run in Scout's environment, everything else in ``.venv-verl-tool`` (`make
setup-verl-tool`). Nothing of verl-tool is edited: its classes are subclassed, and `patches` says what no hook
can reach.
"""
